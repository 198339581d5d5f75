# shellcheck shell=bash
# The lines of [once]: on the first node, before any rank, once per job. A start after a requeue does not repeat them.

once::run() {
    local -r done_file="${KIT_RUN_DIR}/state/once-${SLURM_JOB_ID}"
    local -i code
    ((${#KIT_ONCE_ARGV[@]})) && [[ ! -e "${done_file}" ]] || return 0
    KIT_NODE_NAMES="${KIT_NODE_NAMES%% *}" steps::start kit-once "${KIT_ONCE_ARGV[@]}"
    steps::wait kit-once
    code=$?
    [[ -z "${signals_got}" ]] || return 143
    if ((code)); then
        log::error "the lines of [once] ended with exit code ${code}; no rank was started"
        failures::tail "${KIT_RUN_DIR}/logs/once.log"
        return "${code}"
    fi
    : >"${done_file}"
}
