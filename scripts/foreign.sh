#!/bin/bash
# foreign.sh [--short] [--only-venv] [PYTEST-OPTION...]: tests the kit's output for other programs with their own parsers, on CPUs.
#   Releases from pip go into .foreign-venv/releases, each in its own folder. Their imports go into .foreign-venv, which extends
#   .train-venv. MEGATRON_LM, TORCHTITAN, PRIME_RL and NEMO_RL name checkouts, of what pip does not have; the first two may name
#   several, with colons between. With PRIME_RL, the imports of its classes are installed too.
#   --short: TorchTitan alone, and no cluster. CI runs this.
# Exit code: pytest's; 69 where the virtual environments cannot be made.
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
readonly VENV=.foreign-venv STAMP=.foreign-venv/made-from.sha256
readonly PROGRAMS=(accelerate==1.15.0 lightning==2.6.6 ray==2.60.0)
readonly INPUTS=(scripts/foreign.sh containers/frameworks-cpu/requirements.lock)
readonly TORCHTITAN_RELEASES=(0.1.0 0.2.0 0.2.1 0.2.2 0.3.0)
# verl, and what its driver and its worker groups import. NeMo-RL's parser needs some of it, too.
readonly VERL=(verl==0.9.1 hydra-core==1.3.2 omegaconf==2.3.0 antlr4-python3-runtime==4.9.3 codetiming==1.4.0 tensordict==0.15.3
    pylatexenc==2.11 dill==0.4.1 torchdata==0.11.0 pyvers==0.2.3 orjson==3.13.0 cloudpickle==3.1.3 importlib_metadata==10.2.0 zipp==4.1.2)
readonly PRIME_RL_NEEDS=(prime-pydantic-config==0.4.3 renderers==0.1.12 verifiers==0.4.0 tomli==2.5.0 tomli-w==1.2.0)

say() {
    printf 'foreign: %s\n' "$*" >&2
}

make_venv() {
    local release site pip
    if sha256sum --check --status "${STAMP}" 2>/dev/null; then
        return 0
    fi
    say "installs the releases of other people's programs into ${VENV}"
    rm -rf -- "${VENV}"
    .train-venv/bin/python -m venv "${VENV}" || return 1
    site="$("${VENV}/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    # Packages of .train-venv are not installed again.
    realpath .train-venv/lib/python3*/site-packages >"${site}/train.pth" || return 1
    printf 'torch==2.13.0\n' >"${VENV}/constraints.txt"
    pip=("${VENV}/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "${VENV}/constraints.txt")
    "${pip[@]}" tyro==1.0.17 torchdata==0.11.0 triton==3.9.0 tomli==2.5.0 spmd_types==0.2.3 torch_checkpointing==0.1.1 || return 1
    for release in "${TORCHTITAN_RELEASES[@]}"; do
        "${pip[@]}" --no-deps --target "${VENV}/releases/torchtitan-${release}" "torchtitan==${release}" || return 1
    done
    sha256sum "${INPUTS[@]}" >"${STAMP}"
}

# The programs that the tests train on a cluster.
make_programs() {
    local -r made_from="${VENV}/programs"
    if [[ "$(cat "${made_from}" 2>/dev/null)" == "${PROGRAMS[*]}" ]]; then
        return 0
    fi
    say "installs ${PROGRAMS[*]} into ${VENV}"
    "${VENV}/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "${VENV}/constraints.txt" "${PROGRAMS[@]}" || return 1
    printf '%s\n' "${PROGRAMS[*]}" >"${made_from}"
}

# What the classes of a checkout of prime-rl import, apart from all else. Without it only they are not asked.
make_prime_rl() {
    local -r folder="${VENV}/prime-rl" made_from="${PRIME_RL_NEEDS[*]}"
    if [[ -z "${PRIME_RL:-}" || "$(cat "${folder}/made-from" 2>/dev/null)" == "${made_from}" ]]; then
        return 0
    fi
    say "installs what prime-rl's configuration classes import into ${folder}"
    rm -rf -- "${folder}"
    "${VENV}/bin/python" -m pip install --quiet --disable-pip-version-check --target "${folder}" "${PRIME_RL_NEEDS[@]}" || return 1
    printf '%s\n' "${made_from}" >"${folder}/made-from"
}

# It asks for an older numpy, which nothing here needs: its packages come without what they require.
make_verl() {
    local -r folder="${VENV}/verl" made_from="${VERL[*]}"
    if [[ "$(cat "${folder}/made-from" 2>/dev/null)" == "${made_from}" ]]; then
        return 0
    fi
    say "installs ${VERL[0]} into ${folder}"
    rm -rf -- "${folder}"
    "${VENV}/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "${folder}" "${VERL[@]}" || return 1
    printf '%s\n' "${made_from}" >"${folder}/made-from"
}

short=false
if [[ "${1:-}" == --short ]]; then
    short=true
    shift
fi
if ! { scripts/training.sh --only-venv && make_venv && { "${short}" || make_programs; }; }; then
    say "skipped: ${VENV} cannot be made (pip's error is above)"
    exit 69
fi
"${short}" || make_verl || say "verl is not asked: it cannot be installed"
"${short}" || make_prime_rl || say "prime-rl's own classes are not asked: what they import cannot be installed"
[[ "${1:-}" != --only-venv ]] || exit 0
export OMP_NUM_THREADS=1 KIT_FOREIGN=1
code=0
if "${short}"; then
    # The outcomes count for tests/capabilities.md (tests/rows.py).
    export KIT_OUTCOMES=foreign
    exec .venv/bin/python -m pytest -p no:cacheprovider --numprocesses "${WORKERS:-2}" \
        tests/foreign/test_torchtitan.py "$@"
fi
.venv/bin/python -m pytest -p no:cacheprovider --numprocesses "${WORKERS:-2}" --dist loadfile -m "slow or not slow" tests/foreign "$@" || code=$?
IFS=: read -ra checkouts <<<"${MEGATRON_LM:-}"
for checkout in "${checkouts[@]}"; do
    MEGATRON_LM="${checkout}" "${VENV}/bin/python" -m pytest -p no:cacheprovider -m "slow or not slow" tests/training/test_megatron_lm.py \
        tests/training/test_megatron_lm_published.py tests/training/test_megatron_lm_on_cpus.py "$@" || code=$?
done
exit "${code}"
