# shellcheck shell=bash
# shellcheck disable=SC2154 # other libraries set steps_pid, retry_… and nodes_all
# Warm ranks (`[retry] warm`): step kit-warm has one process on each node, which imports modules and forks the ranks of the node
# (warm_ranks.py). It lives over the attempts of a job. It runs in the job's container, with the job's set-up lines.
#
# After a failure, the ranks start again in the step that they have: no srun, no worker.sh, no rank.sh. srun connects this script
# with the warm processes: its standard input goes to all of them, and their standard output comes from it (warm_held.py has the
# words). A rank's end is known here some milliseconds later. The listener then has all ranks of all nodes stopped, and tells this
# script by USR2. This script decides as after any failure, and orders the next start. Where that cannot be, it releases the ranks:
# their step ends, and another one starts.

# Seconds in which a rank looks for the warm process: at the job's first start, whose steps start together, and later.
readonly warm_ranks_wait_first=30 warm_ranks_wait=2
# Characters of the longest environment that a rank may have, which its place in /proc must hold.
readonly warm_ranks_room=120000
# Seconds in which the ranks of all nodes must have stopped, and in which their step must end once they are released.
readonly warm_ranks_stop_s=15 warm_ranks_release_s=15
readonly warm_ranks_file="${KIT_RUN_DIR}/state/warm-stopped"
# The attempt whose ranks are stopped and can start again in their step; the nodes of that step, and the folder of its first
# failures; the ends of two pipes.
warm_ranks_stopped="" warm_ranks_nodes="" warm_ranks_failures="" warm_ranks_orders="" warm_ranks_reports=""

# Called by the batch script before each attempt. A warm process that died is not started again: it may die again.
warm_ranks::before_attempt() {
    if [[ -z "${KIT_WARM_WAIT:-}" ]]; then
        warm_ranks::connect
        steps::set_env KIT_WARM_SERVER=1 KIT_WARM_ORDERS=1 "KIT_MASTER_ADDR=${KIT_MASTER_ADDR}" "KIT_MASTER_PORT=${KIT_MASTER_PORT}"
        steps::set_streams "/dev/fd/${warm_ranks_orders}" "/dev/fd/${warm_ranks_reports}"
        KIT_NODE_NAMES="${nodes_all[*]}" steps::start kit-warm "${KIT_WARM_ARGV[@]}"
        export KIT_WARM_WAIT="${warm_ranks_wait_first}"
    elif kill -0 "${steps_pid[kit-warm]:-0}" 2>/dev/null; then
        KIT_WARM_WAIT="${warm_ranks_wait}"
    else
        log::info "step kit-warm has ended; the ranks import by themselves. See ${KIT_RUN_DIR}/logs/warm.log"
        KIT_WARM_WAIT=0
    fi
}

# Opens the pipes, which have no name and end with their holders: one for orders, which this script keeps open for reading, too, so
# that no write blocks or fails; one for reports, whose reader ends with srun and this script.
warm_ranks::connect() {
    rm -f -- "${warm_ranks_file}"
    exec {warm_ranks_orders}<> <(:)
    exec {warm_ranks_reports}> >(loops::close && warm_ranks::listen "$$")
    loops::hold warm_orders "${warm_ranks_orders}"
    loops::hold warm_reports "${warm_ranks_reports}"
}

# warm_ranks::order WORD…: sends an order to the warm processes of all nodes.
warm_ranks::order() {
    local IFS=$'\t'
    printf '%s\n' "$*" >&"${warm_ranks_orders}"
}

# warm_ranks::listen BATCH: reads the reports. Anything else that a task writes goes to warm.log.
warm_ranks::listen() {
    local -r batch="$1"
    # Of the attempt `now`: how many ranks were forked and are stopped, since when they are to stop, and whether they can start again
    # in their step.
    local -i status forked=0 stopped=0 stops_at=0
    local line now="" can=1 refused=""
    trap '' TERM USR1 USR2 INT HUP
    while true; do
        IFS= read -r -t 2 line
        status=$?
        if ((status > 128)); then
            warm_ranks::look_again
        elif ((status)); then
            return 0
        elif [[ "${line}" == "kit-warm "* ]]; then
            warm_ranks::hear "${line#kit-warm }"
        else
            printf '%s\n' "${line}" >>"${KIT_RUN_DIR}/logs/warm.log"
        fi
    done
}

# Called by the listener when no report has come for a while.
warm_ranks::look_again() {
    # A warm process of a node that does not answer.
    if ((stops_at && EPOCHSECONDS - stops_at > warm_ranks_stop_s)); then
        warm_ranks::order release "${now}"
        stops_at=0 can=""
    fi
    # The signal may have come just before this script began to wait.
    [[ ! -s "${warm_ranks_file}" ]] || kill -USR2 "${batch}" 2>/dev/null
}

# warm_ranks::hear REPORT: changes what the listener knows of the attempt.
warm_ranks::hear() {
    local word attempt number how
    read -r word attempt number how <<<"$1"
    numbers::keep number
    [[ "${attempt}" == "${now}" ]] || now="${attempt}" forked=0 stopped=0 stops_at=0 can=1
    case "${word}" in
        forked) forked+=1 ;;
        refused)
            # Once for a job: its other ranks have mostly the same reason.
            [[ -n "${refused}" ]] || log::info "rank ${number} was not started from its warm process, and imports by itself: ${how}"
            refused=1
            ;;
        # Its task is gone: the step has no place any more for all ranks.
        done) can="" ;;
        ended)
            if [[ -z "${can}" ]] || ((forked < KIT_WARM_RANKS)); then
                warm_ranks::order release "${now}"
                can=""
            elif ((!stops_at)); then
                warm_ranks::order stop "${now}" "${how}"
                stops_at="${EPOCHSECONDS}"
            fi
            ;;
        stopped)
            stopped+=number
            if [[ -n "${can}" ]] && ((stopped == KIT_WARM_RANKS)); then
                stops_at=0
                printf '%s\n' "${now}" >"${warm_ranks_file}.new" && mv -f -- "${warm_ranks_file}.new" "${warm_ranks_file}"
                kill -USR2 "${batch}" 2>/dev/null
            fi
            ;;
    esac
}

# Whether the ranks of this attempt are stopped, so that they can start again in their step.
warm_ranks::held() {
    local attempt=""
    if [[ -z "${warm_ranks_stopped}" && -n "${warm_ranks_orders}" && -s "${warm_ranks_file}" ]]; then
        read -r attempt <"${warm_ranks_file}"
        [[ "${attempt}" != "${KIT_RESTART_COUNT}" ]] || warm_ranks_stopped="${attempt}"
    fi
    [[ -n "${warm_ranks_stopped}" ]]
}

# warm_ranks::start_held NAME=VALUE…: starts the stopped ranks again in their step, with these variables. Returns 1 where they
# need another step.
warm_ranks::start_held() {
    [[ -n "${warm_ranks_stopped}" ]] || return 1
    if [[ "${KIT_NODE_NAMES}" != "${warm_ranks_nodes}" ]]; then
        warm_ranks::release
        return 1
    fi
    failures::follow "${warm_ranks_failures}" "${failures_name}"
    warm_ranks::order again "${warm_ranks_stopped}" "KIT_MASTER_ADDR=${KIT_MASTER_ADDR}" "KIT_MASTER_PORT=${KIT_MASTER_PORT}" "$@"
    rm -f -- "${warm_ranks_file}"
    warm_ranks_stopped=""
}

warm_ranks::after_last_attempt() {
    warm_ranks::release
}

# Lets the step of stopped ranks end, and waits for it.
warm_ranks::release() {
    local name
    [[ -n "${warm_ranks_stopped}" ]] || return 0
    warm_ranks::order release "${warm_ranks_stopped}"
    rm -f -- "${warm_ranks_file}"
    warm_ranks_stopped=""
    for name in "${!roles_state[@]}"; do
        [[ -n "${steps_pid[${name}]:-}" ]] || continue
        steps::doom "${name}" "its ranks have ended" "${warm_ranks_release_s}"
        steps::wait "${name}"
    done
}

# Notes the step that a role's ranks start in.
warm_ranks::step_started() {
    warm_ranks_nodes="${KIT_NODE_NAMES}" warm_ranks_failures="${failures_name}"
}

# Prints the name of the abstract socket. Virtual nodes of one machine may share them.
warm_ranks::name() {
    printf 'kit-warm-%s.%s-%s' "${SLURM_JOB_ID}" "${SLURM_RESTART_COUNT:-0}" "${SLURMD_NODENAME:-$(uname -n)}"
}

# Called by worker.sh in step kit-warm, before anything is written: what set-up lines write is no report.
warm_ranks::keep_reports() {
    exec {warm_ranks_reports}>&1 1>&2
}

# Called by worker.sh in step kit-warm: becomes the warm process, with the environment of a rank.
warm_ranks::serve() {
    local -r path="${PYTHONPATH:+${PYTHONPATH}:}${KIT_RUN_DIR}/lib"
    local pad modules
    printf -v pad '%*s' "${warm_ranks_room}" ''
    modules="$(IFS=,; printf '%s' "${KIT_WARM[*]}")"
    umask "${KIT_UMASK:-$(umask)}"
    exec 1>&"${warm_ranks_reports}" {warm_ranks_reports}>&-
    exec env -- "KIT_WARM_ROOM=${pad}" "PYTHONPATH=${path}" "${KIT_PROGRAM_ENV[@]}" "${KIT_PROGRAM[0]}" "${KIT_RUN_DIR}/lib/warm_ranks.py" \
        "$(warm_ranks::name)" "${modules}" "${KIT_PROGRAM[@]}"
}
