# shellcheck shell=bash
# Slurm steps: started in the background and waited for by pid, since a trap has to wait for a foreground child.

declare -A steps_pid=()

# steps::start NAME srun WORD…: on the nodes that were chosen.
steps::start() {
    local -r name="$1" srun="$2"
    shift 2
    local -ar argv=("${srun}" --nodelist="${KIT_NODE_NAMES// /,}" "$@")
    # The heartbeat's pipe must have one holder only.
    if [[ -n "${heartbeat_fd:-}" ]]; then
        "${argv[@]}" {heartbeat_fd}>&- </dev/null &
    else
        "${argv[@]}" </dev/null &
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

# Ends every step that still runs: asked first, then killed, never waited for longer than ten seconds each.
steps::end_all() {
    local name
    for name in "${!steps_pid[@]}"; do
        steps::end "${name}" 100
    done
}

# steps::end NAME TENTHS
steps::end() {
    local -r name="$1"
    local -r pid="${steps_pid[${name}]}"
    local -i tenths
    steps::signal TERM "${name}"
    for ((tenths = 0; tenths < $2; tenths++)); do
        kill -0 "${pid}" 2>/dev/null || break
        # A step that ignores TERM, or that never came up, is not asked twice.
        if ((tenths == 20)); then
            steps::signal KILL "${name}"
            kill -TERM "${pid}" 2>/dev/null
        fi
        sleep 0.1
    done
    kill -KILL "${pid}" 2>/dev/null
    wait "${pid}" 2>/dev/null
    unset "steps_pid[${name}]"
}
