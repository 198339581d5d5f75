# shellcheck shell=bash
# Slurm steps. They run in the background and are checked repeatedly, because a trap cannot run before a foreground child ends.

declare -A steps_pid=()
# The time (EPOCHSECONDS) at which all steps must be gone, and the same for single steps; 0: no limit.
declare -i steps_deadline=0
declare -A steps_deadline_of=() steps_why_of=() steps_kill_since=() steps_kill_next=()
declare -i steps_code=0
steps_env=() steps_why=""
# Files of the next step only, in place of /dev/null and this script's own output.
steps_stdin="" steps_stdout="" steps_options=()

# steps::set_env NAME=VALUE…: sets the environment that only the next step gets.
steps::set_env() {
    steps_env=("$@")
}

# steps::set_streams IN OUT: sets the standard input and output that only the next step gets.
steps::set_streams() {
    steps_stdin="$1" steps_stdout="$2"
}

# steps::set_deadline SECONDS WHY: sets the deadline of all steps, from now.
steps::set_deadline() {
    steps_deadline=$((EPOCHSECONDS + $1)) steps_why="$2"
}

steps::clear_deadline() {
    steps_deadline=0
}

# steps::doom NAME WHY [SECONDS]: ends this step, now or after some seconds.
steps::doom() {
    steps_deadline_of["$1"]=$((EPOCHSECONDS + ${3:-0})) steps_why_of["$1"]="$2"
}

# steps::start NAME srun WORD…: starts a step on the chosen nodes.
steps::start() {
    local -r name="$1" srun="$2"
    shift 2
    steps_options=()
    parts::call step_options "$@"
    failures::note_output "${name}"
    steps::spawn "${srun}" --nodelist="${KIT_NODE_NAMES// /,}" "${steps_options[@]}" "${environment_share[@]}" "$@"
    steps_pid["${name}"]=$!
    steps_env=() steps_stdin="" steps_stdout=""
    unset "steps_kill_since[${name}]" "steps_kill_next[${name}]" "steps_deadline_of[${name}]" "steps_why_of[${name}]"
}

# steps::add_options WORD…: further options of srun for the step that is about to start.
steps::add_options() {
    steps_options+=("$@")
}

# Runs in the background, without the pipes of loops.sh. When such a subshell is killed, bash prints its source, which is one word here.
steps::spawn() {
    steps::become "$@" &
}

steps::become() {
    local pair
    exec <"${steps_stdin:-/dev/null}"
    [[ -z "${steps_stdout}" ]] || exec >"${steps_stdout}"
    loops::close
    for pair in "${steps_env[@]}"; do
        export "${pair?}"
    done
    # The step leaves the terminal's process group, because only this script handles Ctrl-C: srun reacts to it even where it is
    # ignored, and a second one within a second interrupts its tasks. Without a terminal there is no Ctrl-C, and Slurm finds the
    # steps by their process group.
    if { : </dev/tty; } 2>/dev/null && command -v setsid >/dev/null; then
        exec setsid "$@"
    fi
    exec "$@"
}

# steps::pause NAME…: waits until something may have happened to these steps. A single step is waited for, which costs nothing,
# unless there is a deadline. Several steps are checked twice a second. `wait -n` and `read -t` do not work: under bash 5.2, a trap
# in the middle makes the first forget a child and the second abort.
steps::pause() {
    local -a pids=()
    local -i own=0
    local name
    for name in "$@"; do
        [[ -z "${steps_pid[${name}]:-}" ]] || pids+=("${steps_pid[${name}]}")
        own=$((own || ${steps_deadline_of[${name}]:-0}))
    done
    if ((steps_deadline || own)); then
        sleep 0.1
    elif ((${#pids[@]} == 1 && $# == 1)); then
        wait "${pids[0]}" 2>/dev/null
    else
        sleep 0.5
    fi
}

# Whether a step's srun is gone. Its code is then in steps_code.
steps::ended() {
    local -r name="$1"
    local -r pid="${steps_pid[${name}]}"
    ! kill -0 "${pid}" 2>/dev/null || return 1
    # 2>/dev/null: bash would print the source of a killed subshell.
    wait "${pid}" 2>/dev/null
    steps_code=$?
    unset "steps_pid[${name}]" "steps_deadline_of[${name}]"
    ((steps_code == 0)) || steps::end_orphan "${name}"
}

# Waits for a step whose code does not matter.
steps::forget() {
    [[ -n "${steps_pid[$1]:-}" ]] || return 0
    wait "${steps_pid[$1]}" 2>/dev/null
    unset "steps_pid[$1]"
}

# Waits for a step, and returns its exit code.
steps::wait() {
    local -r name="$1"
    until steps::ended "${name}"; do
        steps::enforce_deadline "${name}"
        steps::pause "${name}"
    done
    return "${steps_code}"
}

# At the deadline, kills the tasks. If srun then still waits for a node that does not answer, it gets TERM 3 s after the tasks' KILL,
# and KILL 10 s after that KILL. An srun whose step Slurm has not made yet, for example because it waits for nodes, has no tasks: it is gone
# within two seconds.
steps::enforce_deadline() {
    local -r name="$1"
    local -ri own="${steps_deadline_of[${name}]:-0}"
    if ! ((steps_deadline && EPOCHSECONDS >= steps_deadline || own && EPOCHSECONDS >= own)); then
        return 0
    fi
    case "${steps_kill_next[${name}]:-KILL step}" in
        'KILL step')
            log::error "step ${name} is killed: ${steps_why_of[${name}]:-${steps_why:-it is still there at its deadline}}"
            steps_kill_since["${name}"]="${EPOCHSECONDS}" steps_kill_next["${name}"]='TERM srun'
            steps::signal KILL "${name}" || steps_kill_next["${name}"]='TERM waiting srun'
            ;;
        'TERM waiting srun')
            ((EPOCHSECONDS > steps_kill_since[${name}])) || return 0
            # The step may have come up meanwhile, or srun may be about to end after it.
            if steps::signal KILL "${name}"; then
                steps_kill_next["${name}"]='TERM srun'
            else
                kill -TERM "${steps_pid[${name}]}" 2>/dev/null
                steps_kill_next["${name}"]='KILL waiting srun'
            fi
            ;;
        'KILL waiting srun')
            ((EPOCHSECONDS > steps_kill_since[${name}] + 1)) || return 0
            steps::signal KILL "${name}"
            kill -KILL "${steps_pid[${name}]}" 2>/dev/null
            ;;
        'TERM srun')
            ((EPOCHSECONDS - steps_kill_since[${name}] >= 3)) || return 0
            kill -TERM "${steps_pid[${name}]}" 2>/dev/null
            steps_kill_next["${name}"]='KILL srun'
            ;;
        'KILL srun')
            ((EPOCHSECONDS - steps_kill_since[${name}] >= 10)) || return 0
            kill -KILL "${steps_pid[${name}]}" 2>/dev/null
            ;;
    esac
}

# Prints Slurm's ids of running steps, by their names, because the ids depend on the order in which the steps started.
steps::ids() {
    slurm::ask squeue --noheader --steps --jobs="${environment_job}" --format='%i %j' 2>/dev/null \
        | awk -v names=" $* " 'index(names, " " $2 " ") { print $1 }'
}

# steps::signal SIGNAL NAME…: signals the steps, never srun, which would kill its tasks at once. Returns 1 where Slurm has none of
# them.
steps::signal() {
    local -r signal="$1"
    shift
    local -a ids
    mapfile -t ids < <(steps::ids "$@")
    ((${#ids[@]})) || return 1
    slurm::ask scancel --signal="${signal}" "${ids[@]}" 2>/dev/null || true
}

# Ends every step that still runs. Each is asked first, then killed, and never waited for longer than ten seconds. A part may end its
# own step when the others are gone.
steps::end_all() {
    local -a names=()
    local name
    for name in "${!steps_pid[@]}"; do
        parts::any keeps_step "${name}" || names+=("${name}")
    done
    steps::end 100 "${names[@]}"
    parts::call steps_ended
}

# steps::end TENTHS NAME…
steps::end() {
    local -ri most="$1"
    shift
    local -i tenths
    local -a left=()
    local name
    for name in "$@"; do
        if kill -0 "${steps_pid[${name}]}" 2>/dev/null; then
            left+=("${name}")
        else
            wait "${steps_pid[${name}]}" 2>/dev/null || log::info "step ${name} had ended before, with $?"
        fi
    done
    ((${#left[@]} == 0)) || steps::signal TERM "${left[@]}"
    for ((tenths = 0; tenths < most; tenths++)); do
        steps::some_left "${left[@]}" || break
        # A step that ignores TERM, or that never started, is not asked twice.
        ((tenths != 10)) || steps::end_waiting TERM "${left[@]}"
        ((tenths != 20)) || steps::force "${left[@]}"
        sleep 0.1
    done
    for name in "$@"; do
        kill -KILL "${steps_pid[${name}]}" 2>/dev/null
        wait "${steps_pid[${name}]}" 2>/dev/null
        unset "steps_pid[${name}]"
    done
}

steps::some_left() {
    local name
    for name in "$@"; do
        ! kill -0 "${steps_pid[${name}]}" 2>/dev/null || return 0
    done
    return 1
}

steps::force() {
    local name
    steps::end_waiting KILL "$@"
    steps::signal KILL "$@"
    for name in "$@"; do
        kill -TERM "${steps_pid[${name}]}" 2>/dev/null
    done
}

# steps::end_waiting SIGNAL NAME…: signals each srun whose step Slurm has not made: it waits for nodes, and gets no signal to its
# step.
steps::end_waiting() {
    local -r signal="$1"
    shift
    local -A made=()
    local name
    while read -r name; do
        made["${name}"]=1
    done < <(slurm::ask squeue --noheader --steps --jobs="${environment_job}" --format=%j 2>/dev/null)
    for name in "$@"; do
        [[ -n "${made[${name}]:-}" ]] || kill -s "${signal}" "${steps_pid[${name}]}" 2>/dev/null
    done
}

# Ends a step whose srun died: the step is still there, and would block its nodes for the next step. When Slurm ends the job there
# is no next step, and no time to wait for a lost node.
steps::end_orphan() {
    local -r name="$1"
    local -i tenths
    [[ -z "${signals_slurms_term:-}" && -n "$(steps::ids "${name}")" ]] || return 0
    # The step may be about to end: srun learns of the tasks' end before the controller does.
    sleep 0.5
    [[ -n "$(steps::ids "${name}")" ]] || return 0
    log::error "srun is gone and step ${name} is not: srun was killed, or gave up on a node; the step is ended"
    steps::signal KILL "${name}"
    for ((tenths = 0; tenths < 50; tenths++)); do
        [[ -n "$(steps::ids "${name}")" ]] || return 0
        sleep 0.1
    done
}
