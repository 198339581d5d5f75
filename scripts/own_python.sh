#!/bin/bash
# own_python.sh [PYTEST-OPTION...]: runs tests on the oldest Pythons that are promised, which .venv does not have.
#
# - The unit tests of images, with imports that merge layers, on the distribution's own Python, /usr/bin/python3. Debian 12's is the
#   oldest that pyproject.toml promises. They use the packages of .venv, so it must have the same minor version, for which their
#   compiled parts are made.
# - What runs beside ranks (templates/kit_node) on Python 3.8, the oldest of images and nodes: its unit tests in an environment with
#   nothing but pytest, and a few tests that start its programs.
#
# What cannot run is skipped, with a message why. Exit code: 0, or 1 if a test failed.
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
readonly OWN=/usr/bin/python3 VENV=.venv/bin/python
readonly NODE_VERSION=3.8 NODE_VENV=.node-venv
# Those that fork ranks and compare them with a plain start, and those that send an image from node to node.
readonly NODE_PROGRAMS='forked_program_ends_as and not syntax or one_node_reads_the_store or killed_sender_continues'

say() {
    printf 'own-python: %s\n' "$*"
}

version() {
    "$1" -c 'import platform; print(platform.python_version())'
}

run_images() {
    if [[ ! -x "${OWN}" ]]; then
        say "SKIPPED: images: there is no ${OWN}"
        return 0
    fi
    local own venv packages code=0
    own=$(version "${OWN}")
    venv=$(version "${VENV}")
    if [[ "${own}" == "${venv}" ]]; then
        say "${OWN} is Python ${own}, and so is .venv: make test runs on it"
        return 0
    fi
    if [[ "${own%.*}" != "${venv%.*}" ]]; then
        say "SKIPPED: images: ${OWN} is Python ${own} and .venv has ${venv}: it cannot load the packages of .venv"
        return 0
    fi
    say "images: ${OWN} is Python ${own}; .venv has ${venv}"
    packages=$("${VENV}" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    PYTHONPATH="${packages}" PYTHONDONTWRITEBYTECODE=1 "${OWN}" -m pytest -q -p no:cacheprovider "$@" tests/unit/test_image_*.py || code=$?
    say "Python ${own}: $( ((code == 0)) && printf 'passed' || printf 'FAILED with %s' "${code}")"
    return $((code > 0))
}

# Prints the path of a Python of NODE_VERSION; a shim of pyenv may stand on the PATH and refuse to run.
find_node_python() {
    local candidate
    for candidate in "python${NODE_VERSION}" "${PYENV_ROOT:-${HOME}/.pyenv}"/versions/"${NODE_VERSION}".*/bin/python3; do
        if [[ "$(version "${candidate}" 2>/dev/null)" == "${NODE_VERSION}".* ]]; then
            command -v "${candidate}"
            return 0
        fi
    done
    return 1
}

run_node() {
    local python code=0
    if ! python=$(find_node_python); then
        say "SKIPPED: what runs beside ranks: there is no Python ${NODE_VERSION}"
        return 0
    fi
    say "what runs beside ranks: ${python} is Python $(version "${python}")"
    if [[ ! -x "${NODE_VENV}/bin/pytest" ]]; then
        rm -rf "${NODE_VENV}"
        if ! { "${python}" -m venv "${NODE_VENV}" && "${NODE_VENV}/bin/pip" install -q --disable-pip-version-check 'pytest>=8,<8.4'; }; then
            rm -rf "${NODE_VENV}"
            say "SKIPPED: its unit tests: no pytest for Python ${NODE_VERSION} can be installed"
        fi
    fi
    if [[ -x "${NODE_VENV}/bin/pytest" ]]; then
        PYTHONDONTWRITEBYTECODE=1 "${NODE_VENV}/bin/python" -m pytest -q -p no:cacheprovider -c /dev/null --rootdir . \
            --confcutdir tests/unit/kit_node tests/unit/kit_node || code=1
    fi
    KIT_NODE_PYTHON="${python}" PATH="${python%/*}:${PATH}" "${VENV}" -m pytest -q -p no:cacheprovider "$@" \
        tests/unit/test_warm_ranks.py tests/scripts/test_image_chain.py -k "${NODE_PROGRAMS}" || code=1
    say "Python ${NODE_VERSION}: $( ((code == 0)) && printf 'passed' || printf 'FAILED')"
    return "${code}"
}

failed=0
run_images "$@" || failed=1
run_node "$@" || failed=1
exit "${failed}"
