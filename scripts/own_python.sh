#!/bin/bash
# own_python.sh [PYTEST-OPTION...]: runs the unit tests of images, with imports that merge layers, on the distribution's own Python,
# /usr/bin/python3, if .venv has another one. Debian 12's is the oldest that pyproject.toml promises. It uses the packages of .venv,
# so it must have the same minor version, for which their compiled parts are made. Exit code: pytest's; 0 if there is nothing to
# run, with a message why.
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
readonly OWN=/usr/bin/python3 VENV=.venv/bin/python

say() {
    printf 'own-python: %s\n' "$*"
}

version() {
    "$1" -c 'import platform; print(platform.python_version())'
}

if [[ ! -x "${OWN}" ]]; then
    say "SKIPPED: there is no ${OWN}"
    exit 0
fi
own=$(version "${OWN}")
venv=$(version "${VENV}")
if [[ "${own}" == "${venv}" ]]; then
    say "${OWN} is Python ${own}, and so is .venv: make test runs on it"
    exit 0
fi
if [[ "${own%.*}" != "${venv%.*}" ]]; then
    say "SKIPPED: ${OWN} is Python ${own} and .venv has ${venv}: it cannot load the packages of .venv"
    exit 0
fi
say "${OWN} is Python ${own}; .venv has ${venv}"
packages=$("${VENV}" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
code=0
PYTHONPATH="${packages}" PYTHONDONTWRITEBYTECODE=1 "${OWN}" -m pytest -q -p no:cacheprovider "$@" tests/unit/test_image_*.py || code=$?
say "Python ${own}: $( ((code == 0)) && printf 'passed' || printf 'FAILED with %s' "${code}")"
exit "${code}"
