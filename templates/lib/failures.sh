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

# Fails when there is no place to write to; the caller's code is then all that is known.
failures::record() {
    printf '%s %s %s %s\n' "${EPOCHREALTIME/,/.}" "$1" "$2" "${SLURMD_NODENAME:-$(uname -n)}" >"$(failures::folder)/rank-$1"
}

failures::any() {
    compgen -G "$(failures::folder)/rank-*" >/dev/null
}

# A full disk would silence the one message that names it: this script's last words have their space set aside.
failures::reserve_space() {
    head -c 262144 /dev/urandom >"${KIT_RUN_DIR}/state/.reserve" 2>/dev/null || true
}

failures::release_space() {
    rm -f -- "${KIT_RUN_DIR}/state/.reserve"
}

# Names the first failed rank with the end of its log; returns its code, or the given one when no rank recorded any.
failures::explain() {
    local -ir step_code="$1"
    local rank code node full
    full="$(failures::full)"
    failures::release_space
    [[ -z "${full}" ]] || log::error "no space is left where the run folder is: ${full}"
    if ! read -r _ rank code node < <(sort --numeric-sort "$(failures::folder)"/rank-* 2>/dev/null); then
        log::error "the training step ended with ${step_code}, and no rank recorded why; see ${KIT_RUN_DIR}/logs/task-*.log"
        failures::tail "${KIT_RUN_DIR}"/logs/task-*.log
        return "${step_code}"
    fi
    if [[ -n "${got_signal}" ]] && ((code == 143 || code == 138)); then
        log::info "the ranks ended after ${got_signal}, the first of them with exit code ${code}"
        return "${code}"
    fi
    log::error "rank ${rank} on node ${node} failed first, with exit code ${code}"
    failures::tail "${KIT_RUN_DIR}/logs/rank-${rank}.log"
    if [[ -n "${got_slurms_term}" && ("${KIT_RUNTIME}" == pyxis || "${KIT_RUNTIME}" == enroot) ]]; then
        log::info "Slurm's own TERM ends the container's FUSE daemons too, and the ranks' files with them; 'kit cancel' spares them"
    fi
    return "${code}"
}

failures::full() {
    df --output=avail,iavail,target --block-size=1K -- "${KIT_RUN_DIR}" 2>/dev/null \
        | awk 'NR == 2 && ($1 < 128 || $2 == 0) { print $3 " has " $1 " KB and " $2 " inodes left" }'
}

failures::tail() {
    tail --lines=20 -- "$@" 2>/dev/null | sed 's/^/  | /' >&2
}
