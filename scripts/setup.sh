#!/bin/bash
# setup.sh [--with-tests]: prepares this machine for the kit. Prints what it installs before it does.
#   1. Debian or Ubuntu packages that are missing, as root or through sudo
#   2. .venv, with the versions and hashes of requirements/dev.lock
#   3. a Docker Engine, started when none answers (scripts/engine.sh)
# Without root it makes .venv and names the command for the packages. An engine is then asked for when an image is built.
# Safe to run again: existing parts are not changed.
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

say() {
    printf 'setup: %s\n' "$*" >&2
}

die() {
    say "error: $*"
    exit 4
}

# sudo asks for a password only a person at a terminal, and only one who is likely to have the right.
can_be_root() {
    ((EUID == 0)) && return 0
    command -v sudo >/dev/null || return 1
    sudo -n true 2>/dev/null && return 0
    [[ -t 0 ]] && id -nG | grep -qwE 'sudo|wheel|admin'
}

as_root() {
    if ((EUID == 0)); then
        "$@"
    else
        sudo "$@"
    fi
}

# Name of a program that the package brings, and the package.
missing_packages() {
    local program package
    while read -r program package; do
        [[ -z "${program}" || "${program}" == \#* ]] && continue
        PATH="${PATH}:/usr/sbin:/sbin" command -v "${program}" >/dev/null || printf '%s\n' "${package}"
    done < <(cat -- "${package_lists[@]}") | sort -u
    if can_be_root && ! docker_answers && ! command -v dockerd >/dev/null; then
        printf 'docker.io\n'
    fi
    python3 -c 'import ensurepip, venv' 2>/dev/null || printf 'python3-venv\n'
}

docker_answers() {
    [[ -n "${DOCKER_HOST:-}" || -S /var/run/docker.sock ]] && command -v docker >/dev/null && docker version >/dev/null 2>&1
}

# Filters the caller's array `packages`: leaves out test packages that this distribution does not have (Ubuntu: chromium).
known_packages() {
    local package
    local -a known=()
    for package in "${packages[@]}"; do
        if grep -q " ${package}\$" scripts/test-packages.txt && ! apt-cache show "${package}" >/dev/null 2>&1; then
            say "no package ${package} here: the tests that need it are skipped"
        else
            known+=("${package}")
        fi
    done
    packages=("${known[@]}")
}

install_packages() {
    local -a packages
    mapfile -t packages < <(missing_packages)
    if ((${#packages[@]} == 0)); then
        say "system packages: all there"
        return 0
    fi
    if ! can_be_root; then
        say "a Slurm on this machine and its images need packages; as root: apt-get install ${packages[*]}"
        return 0
    fi
    if ! command -v apt-get >/dev/null; then
        say "a Slurm on this machine and its images need packages, and there is no apt-get; install these yourself: ${packages[*]}"
        return 0
    fi
    say "installs these packages with apt-get: ${packages[*]}"
    as_root apt-get update -qq
    known_packages
    ((${#packages[@]})) || return 0
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
}

# Prints the Python for .venv; fails if there is none.
find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11; do
        if "${candidate}" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "${candidate}"
            return 0
        fi
    done
    return 1
}

install_kit() {
    local python stamp
    stamp=".venv/kit-lock.sha256"
    if [[ -x .venv/bin/kit ]] && sha256sum --check --status "${stamp}" 2>/dev/null; then
        say "Python side: .venv is up to date"
        return 0
    fi
    python="$(find_python)" || die "no Python 3.11 or newer with venv; as root: apt-get install python3 python3-venv"
    say "makes .venv with ${python} and installs requirements/dev.lock into it"
    [[ -x .venv/bin/python ]] || "${python}" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/dev.lock
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
    sha256sum requirements/dev.lock pyproject.toml >"${stamp}"
}

package_lists=(scripts/system-packages.txt)
if [[ "${1:-}" == --with-tests ]]; then
    package_lists+=(scripts/test-packages.txt)
fi
# The kit first: what may fail for want of root or of apt-get comes after it.
if find_python >/dev/null; then
    install_kit
    install_packages
else
    install_packages
    install_kit
fi
if can_be_root; then
    scripts/engine.sh up
fi
say "done: .venv/bin/kit"
