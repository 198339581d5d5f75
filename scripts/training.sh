#!/bin/bash
# training.sh [--only-venv] [PYTEST-OPTION...]: runs tests/training with the frameworks that the training programs import. They are
# installed into .train-venv, in the versions of containers/frameworks-cpu/requirements.lock, once for each state of the lock.
#   PyTorch's CPU build is on a separate index. If pip does not know it, add it to pip's configuration (docs/guides/training.md).
# Exit code: pytest's; 69 where .train-venv cannot be made.
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
readonly VENV=.train-venv STAMP=.train-venv/made-from.sha256
readonly INPUTS=(containers/frameworks-cpu/requirements.lock containers/frameworks-cpu/requirements.in requirements/dev.lock scripts/training.sh)

say() {
    printf 'training: %s\n' "$*" >&2
}

# Prints name==version of each package of the locks. If both locks have a package, the first one counts.
constraints() {
    grep -hoE '^[A-Za-z0-9_.-]+==[^ ;]+' "$@" | awk -F== '!seen[tolower($1)]++'
}

make_venv() {
    local pins
    local -a pip
    if sha256sum --check --status "${STAMP}" 2>/dev/null; then
        return 0
    fi
    say "installs the frameworks of containers/frameworks-cpu into ${VENV}"
    rm -rf -- "${VENV}"
    .venv/bin/python -m venv "${VENV}" || return 1
    pins="${VENV}/constraints.txt"
    constraints containers/frameworks-cpu/requirements.lock requirements/dev.lock >"${pins}" || return 1
    pip=("${VENV}/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "${pins}")
    # DeepSpeed is published as source, and needs torch to build its wheel. So install torch first, and build no compiled operators.
    "${pip[@]}" torch numpy setuptools wheel || return 1
    DS_BUILD_OPS=0 "${pip[@]}" --no-build-isolation --requirement containers/frameworks-cpu/requirements.in || return 1
    # Readers and tokenizers for a user's own text (lib/documents.py, lib/vocabulary.py). A program needs those that its data need.
    "${pip[@]}" tokenizers tiktoken pyarrow zstandard datasets || return 1
    # Packages that the tests import, and the parts of the kit that they compare with.
    "${pip[@]}" pytest pytest-timeout pytest-xdist jinja2 platformdirs pydantic rich simpleeval tomli-w || return 1
    # The loops that kit_callbacks reports. TorchTitan needs an older datasets; its test skips without TorchTitan.
    "${pip[@]}" lightning==2.6.6 accelerate==1.15.0 || return 1
    # Packages that draw metrics, and packages that weights are imported from and compared with.
    "${pip[@]}" tensorboard==2.21.0 wandb==0.31.0 transformers==5.23.0 || return 1
    # Megatron-LM's own parser, if MEGATRON_LM names a checkout.
    "${pip[@]}" pyyaml regex six || return 1
    sha256sum "${INPUTS[@]}" >"${STAMP}"
}

if ! make_venv; then
    say "skipped: ${VENV} cannot be made, so no training program was tested (pip's error is above)"
    exit 69
fi
[[ "${1:-}" != --only-venv ]] || exit 0
export OMP_NUM_THREADS=1
# If all of tests/training or its smoke subset runs, the outcomes count for tests/capabilities.md (tests/rows.py).
case "$*" in
    "-m smoke" | "-q -m smoke" | "-m smoke or not smoke") export KIT_OUTCOMES=training ;;
esac
# Two at a time: a program waits for its ranks, files and start about as long as it computes. Tests of one file share what they
# started.
exec "${VENV}/bin/python" -m pytest -p no:cacheprovider --numprocesses "${WORKERS:-2}" --dist loadfile tests/training "$@"
