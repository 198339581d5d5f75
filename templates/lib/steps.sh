# shellcheck shell=bash
# Slurm steps: started in the background and waited for by pid, since a trap has to wait for a foreground child.

declare -A steps_pid=()
# When the ranks have to be gone, in EPOCHSECONDS; 0: whenever they like.
declare -i steps_deadline=0
declare -i steps_signals=0

# steps::start NAME srun WORD…: on the nodes that were chosen.
steps::start() {
    local -r name="$1" srun="$2"
    shift 2
    containers::name "$@"
    local -ar argv=("${srun}" --nodelist="${KIT_NODE_NAMES// /,}" "${containers_named[@]}" "${environment_share[@]}" "$@")
    # The pipes of heartbeat.sh and watch.sh must have one holder only.
    local -a keep=()
    [[ -z "${heartbeat_fd:-}" ]] || keep+=("${heartbeat_fd}")
    [[ -z "${watch_fd:-}" ]] || keep+=("${watch_fd}")
    (
        local fd
        for fd in "${keep[@]}"; do
            exec {fd}>&-
        done
        exec "${argv[@]}" </dev/null
    ) &
    steps_pid["${name}"]=$!
}

# The step's own exit code. A trapped signal interrupts `wait` with a code above 128: wait on while srun is there, and from the first
# signal on with an eye on the clock.
steps::wait() {
    local -r name="$1"
    local -r pid="${steps_pid[${name}]}"
    local -i code
    while true; do
        wait "${pid}"
        code=$?
        if ((code <= 128)) || ! kill -0 "${pid}" 2>/dev/null; then
            break
        fi
        while kill -0 "${pid}" 2>/dev/null; do
            if ((steps_deadline && EPOCHSECONDS >= steps_deadline)); then
                steps::kill "${name}"
            fi
            sleep 0.1
        done
    done
    unset "steps_pid[${name}]"
    ((code == 0)) || steps::end_orphan "${name}"
    return "${code}"
}

# Slurm's id of a running step, by its name: ids depend on the order in which steps came up.
steps::id() {
    squeue --noheader --steps --jobs="${environment_job}" --format='%i %j' 2>/dev/null | awk -v name="$1" '$2 == name { print $1 }'
}

# Signals go to the step, never to srun, which would kill its tasks at once.
steps::signal() {
    local -r signal="$1" name="$2"
    local id
    for id in $(steps::id "${name}"); do
        scancel --signal="${signal}" "${id}" 2>/dev/null || true
    done
}

# TERM or USR1 for the ranks alone, by a step of its own. A job that Slurm is ending takes no new step, and has had Slurm's own TERM.
steps::signal_ranks() {
    local -r name="kit-signal-$((++steps_signals))"
    [[ -n "${steps_pid[${KIT_STEP}]:-}" ]] || return 0
    steps::start "${name}" "${KIT_SIGNAL_ARGV[@]}" "$1" 2>/dev/null
}

# Ends every step that still runs: asked first, then killed, never waited for longer than ten seconds each. Their containers go last.
steps::end_all() {
    local name
    for name in "${!steps_pid[@]}"; do
        [[ "${name}" == kit-container ]] || steps::end "${name}" 100
    done
    containers::end
}

# steps::end NAME TENTHS
steps::end() {
    local -r name="$1"
    local -r pid="${steps_pid[${name}]}"
    local -i tenths
    if ! kill -0 "${pid}" 2>/dev/null; then
        wait "${pid}" 2>/dev/null
        tenths=$?
        ((tenths == 0)) || log::info "step ${name} had ended before, with ${tenths}"
        unset "steps_pid[${name}]"
        return 0
    fi
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

# No more time: the tasks are killed, and srun too when it still waits for a node that does not answer.
steps::kill() {
    local -r name="$1"
    local -r pid="${steps_pid[${name}]}"
    local -i tenths
    log::error "step ${name} is killed: ${steps_why:-it is still there at its deadline}"
    steps::signal KILL "${name}"
    for ((tenths = 0; tenths < 100; tenths++)); do
        kill -0 "${pid}" 2>/dev/null || return 0
        ((tenths == 30)) && kill -TERM "${pid}" 2>/dev/null
        sleep 0.1
    done
    kill -KILL "${pid}" 2>/dev/null
}

# A step whose srun died is still there, and would hold its nodes against the next one.
steps::end_orphan() {
    local -r name="$1"
    local -i tenths
    [[ -n "$(steps::id "${name}")" ]] || return 0
    log::error "srun is gone and step ${name} is not: somebody or something killed srun; the step is ended"
    steps::signal KILL "${name}"
    for ((tenths = 0; tenths < 50; tenths++)); do
        [[ -n "$(steps::id "${name}")" ]] || return 0
        sleep 0.1
    done
}
