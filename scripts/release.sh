#!/bin/bash
# make release: makes wheel and source archive in dist/, installs each into a fresh environment and tries it there. Refuses a dirty
# checkout, a version without a dated heading in CHANGELOG.md, and a version that has a tag. KIT_RELEASE_REHEARSAL=1 skips these
# three checks.
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
readonly python="${PYTHON:-.venv/bin/python}"

die() {
    printf 'release: %s\n' "$*" >&2
    exit 1
}

check_version() {
    local -r version="$1"
    [[ -z "$(git status --porcelain)" ]] || die "the checkout has changes that are not committed"
    grep -qE "^## \[${version//./\\.}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md \
        || die "CHANGELOG.md has no heading '## [${version}] - YYYY-MM-DD': give [Unreleased] that name, and a new one above"
    ! git rev-parse --quiet --verify "refs/tags/v${version}" >/dev/null || die "tag v${version} exists: raise the version in kit/version.py"
}

# try ARCHIVE VERSION: installs it and runs a user's first commands, outside the checkout.
try() {
    local -r archive="$1" version="$2"
    "${python}" -m venv "${work}/venv"
    # A source archive needs hatchling: the build environment takes it from the same index.
    "${work}/venv/bin/pip" install --quiet --disable-pip-version-check "${archive}"
    [[ "$(cd "${work}" && "${work}/venv/bin/kit" --version)" == "kit ${version}" ]] || die "${archive}: kit --version is not ${version}"
    mkdir -p "${work}/project"
    (
        cd "${work}/project"
        "${work}/venv/bin/kit" init --cluster pod --launcher ddp >/dev/null
        "${work}/venv/bin/kit" render --cluster pod --no-container >plan.txt
        grep -q '^#SBATCH --nodes=1' plan.txt
        "${work}/venv/bin/kit" schema job | "${work}/venv/bin/python" -m json.tool >/dev/null
    ) || die "${archive}: the first commands of a user fail"
    [[ -f "${work}/venv/share/man/man1/kit-submit.1" ]] || die "${archive}: there are no man pages in it"
    rm -rf -- "${work:?}/venv" "${work}/project"
    printf 'release: %s installs and runs\n' "${archive##*/}" >&2
}

main() {
    local version
    version="$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' kit/version.py)"
    [[ -n "${KIT_RELEASE_REHEARSAL:-}" ]] || check_version "${version}"
    work="$(mktemp --directory)"
    trap 'rm -rf -- "${work}"' EXIT
    # dist/ is replaced as a whole, once both archives have been tried.
    "${python}" -m hatchling build -d "${work}/dist" >&2
    local archive
    for archive in "${work}/dist"/*; do
        try "${archive}" "${version}"
    done
    mkdir -p dist
    mv -f -- "${work}/dist"/* dist/
    (cd dist && sha256sum -- *"${version}"*)
}

main "$@"
