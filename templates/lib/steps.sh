# shellcheck shell=bash
# Slurm steps: started in the background and waited for by pid, since a trap has to wait for a foreground child.

declare -A steps_pid=()

steps::start() {
    local -r name="$1"
    shift
    # The heartbeat's pipe must have one holder only.
    if [[ -n "${heartbeat_fd:-}" ]]; then
        "$@" {heartbeat_fd}>&- </dev/null &
    else
        "$@" </dev/null &
    fi
    steps_pid["${name}"]=$!
}

# The step's own exit code. A trapped signal interrupts `wait` with a code above 128: wait on while srun is there.
steps::wait() {
    local -r name="$1"
    local -r pid="${steps_pid[${name}]}"
    local -i code
    while true; do
        wait "${pid}"
        code=$?
        if ((code > 128)) && kill -0 "${pid}" 2>/dev/null; then
            continue
        fi
        break
    done
    unset "steps_pid[${name}]"
    return "${code}"
}

# Slurm's id of a running step, by its name: ids depend on the order in which steps came up.
steps::id() {
    squeue --noheader --steps --jobs="${SLURM_JOB_ID}" --format='%i %j' 2>/dev/null | awk -v name="$1" '$2 == name { print $1 }'
}

# Signals go to the step, never to srun, which would kill its tasks at once.
steps::signal() {
    local -r signal="$1" name="$2"
    local id
    for id in $(steps::id "${name}"); do
        scancel --signal="${signal}" "${id}" 2>/dev/null || true
    done
}

steps::forward() {
    log::info "got ${1}; passing it on to step ${2}"
    events::record signal name "$1"
    steps::signal "$1" "$2"
}

# Ends every step that still runs: asked first, then killed, never waited for longer than ten seconds.
steps::end_all() {
    local name
    local -i tenths
    for name in "${!steps_pid[@]}"; do
        steps::signal TERM "${name}"
        kill -TERM "${steps_pid[${name}]}" 2>/dev/null
        for ((tenths = 0; tenths < 100; tenths++)); do
            kill -0 "${steps_pid[${name}]}" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL "${steps_pid[${name}]}" 2>/dev/null
        wait "${steps_pid[${name}]}" 2>/dev/null
    done
    steps_pid=()
}
