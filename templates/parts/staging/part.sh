# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # names that other libraries set or read
# The batch script's side of staging: it starts bin/stage.sh on every node, and decides how to continue.

# Copies the image to every node's own disk before anything starts from it.
staging::stage() {
    local -r folder="${KIT_RUN_DIR}/state/stage"
    local -i code
    rm -rf -- "${folder}"
    mkdir -p -- "${folder}"
    parts::call before_stage
    KIT_NODE_NAMES="${nodes_all[*]}" steps::start kit-stage "${KIT_STAGE_ARGV[@]}"
    staging::await
    code=$?
    parts::call after_stage
    ((code)) || return 0
    [[ -z "${signals_got}" ]] || return 143
    staging::judge "${folder}"
}

# Waits for the step, and returns its code. After a signal, it is ended with TERM first: it then removes what it has not finished.
staging::await() {
    until steps::ended kit-stage; do
        if [[ -n "${signals_got}" ]]; then
            steps::end 50 kit-stage
            return 143
        fi
        steps::pause kit-stage
    done
    return "${steps_code}"
}

# staging::judge FOLDER: names the nodes that could not get the image. Spare nodes take their place.
staging::judge() {
    local -r folder="$1"
    local name
    local -a failed=()
    for name in "${nodes_all[@]}"; do
        [[ ! -e "${folder}/${name}.failed" ]] || failed+=("${name}")
    done
    if ((${#failed[@]} == 0)); then
        log::error "the image was not staged on every node; no rank was started"
        tail --lines=5 -- "${KIT_RUN_DIR}/logs/stage.log" 2>/dev/null | sed 's/^/  | /' >&2
        return "${failures_refused_code}"
    fi
    for name in "${failed[@]}"; do
        nodes::give_up "${name}"
        sed "s/^/  | ${name}: image not staged: /" -- "${folder}/${name}.failed" >&2
    done
    if ((${#nodes_all[@]} - ${#nodes_bad[@]} >= KIT_NODES)); then
        log::error "the image was not staged on ${failed[*]}"
        log::info "continuing with the spare nodes"
        nodes::choose
        return $?
    fi
    log::error "the image was not staged on ${failed[*]}; no rank was started"
    return "${failures_refused_code}"
}
