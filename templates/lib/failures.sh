# shellcheck shell=bash
# Which rank failed first. srun returns the highest code of all tasks and torchrun returns 1 whatever its ranks returned, and the ranks
# that either of them ends afterwards have codes of their own: so each rank records its end, and the earliest one counts.

failures::folder() {
    printf '%s/state/failures-%s' "${KIT_RUN_DIR}" "${KIT_RESTART_COUNT}"
}

failures::prepare() {
    local folder
    folder="$(failures::folder)"
    rm -rf -- "${folder}"
    mkdir -p -- "${folder}"
}

failures::record() {
    printf '%s %s %s %s\n' "${EPOCHREALTIME/,/.}" "$1" "$2" "${SLURMD_NODENAME:-$(uname -n)}" >"$(failures::folder)/rank-$1" || true
}

# Names the first failed rank with the end of its log; returns its code, or the given one when no rank recorded any.
failures::explain() {
    local -ir step_code="$1"
    local rank code node
    if ! read -r _ rank code node < <(sort --numeric-sort "$(failures::folder)"/rank-* 2>/dev/null); then
        log::error "the training step ended with ${step_code}, and no rank recorded why; see ${KIT_RUN_DIR}/logs/task-*.log"
        failures::tail "${KIT_RUN_DIR}"/logs/task-*.log
        return "${step_code}"
    fi
    log::error "rank ${rank} on node ${node} failed first, with exit code ${code}"
    failures::tail "${KIT_RUN_DIR}/logs/rank-${rank}.log"
    return "${code}"
}

failures::tail() {
    tail --lines=20 -- "$@" 2>/dev/null | sed 's/^/  | /' >&2
}
