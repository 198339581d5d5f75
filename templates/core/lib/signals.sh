# shellcheck shell=bash
# Signals to the batch script. Slurm sends it USR1 at the lead: KIT_LEAD seconds before the time limit of a job that has one
# (`#SBATCH --signal`). The ranks get the signal of KIT_LEAD_SIGNALS then: the first of these
# for which a program has a handler. The lead signal (USR1) and a request to end (TERM: a cancel, a preemption, a node that goes down) are
# passed to the ranks, which save and end. HUP and QUIT count as TERM. INT is the user's Ctrl-C where the script runs by hand. A
# second INT does not wait for the ranks.

# The signal that counts: the last one, but not a lead signal after a request to end. And whether it was a TERM of Slurm's own.
signals_got="" signals_slurms_term=""
# Whether Slurm gave no answer about that, so that it is asked again.
signals_unsure=""
# Seconds for that answer: at the signal, and each time again.
readonly signals_answer_s=10 signals_answer_again_s=2
# Steps that carry a signal to the ranks, each with its signal.
declare -A signals_carried=()
declare -i signals_count=0

signals::trap() {
    trap 'signals::pass_on TERM' TERM HUP QUIT
    trap 'signals::pass_on USR1' USR1
    trap 'signals::pass_on INT' INT
    trap signals::on_trouble USR2
}

# shellcheck disable=SC2317 # called by traps
signals::pass_on() {
    local -r again="${signals_got}"
    local -ri came="${EPOCHSECONDS}"
    local seconds=0
    # The lead signal would put the job back into the queue. It is ignored after a request to end, or while that is being passed on.
    if [[ "$1" == USR1 && ("${again}" == TERM || "${again}" == INT) ]]; then
        log::info "got USR1 after ${again}: the job is ending already"
        return 0
    fi
    signals_got="$1"
    # Do this before anything that takes time: `kit cancel` waits for this record.
    events::record signal name "$1"
    if [[ "$1" == INT && "${again}" == INT ]]; then
        steps::set_deadline 0 "Ctrl-C came twice"
    elif ! roles::running; then
        steps::set_deadline 0 "got $1, and there are no ranks yet"
    fi
    log::info "got $1; passing it on to the ranks"
    if [[ "$1" == TERM && -z "${signals_slurms_term}" ]]; then
        signals::ask_whose "${came}"
    fi
    roles::running || return 0
    if [[ "$1$again" != INTINT ]]; then
        seconds="$(retry::time_to_save "$1")"
        # Another signal may have interrupted this one. It has set the deadline, and its own step carries it.
        [[ "${signals_got}" == "$1" ]] || return 0
        steps::set_deadline "${seconds}" "the ranks did not end within ${seconds} s after $1"
    fi
    # A job that Slurm is ending takes no new step, and has got Slurm's own TERM.
    [[ -z "${signals_slurms_term}" ]] || return 0
    case "$1" in
        USR1) signals::carry "${KIT_LEAD_SIGNALS}" "${seconds}" ;;
        *) signals::carry TERM "${seconds}" ;;
    esac
}

# USR2 comes only from failure_watch.sh, stall_watch.sh and warm_ranks.sh.
# shellcheck disable=SC2317 # called by a trap
signals::on_trouble() {
    # Once the run is over, the ranks that are left have their own deadline.
    [[ -z "${signals_got}${roles_over}" ]] && ! parts::any held || return 0
    role_policy::doom
    [[ -n "${signals_got}" ]] || parts::call trouble
}

# signals::ask_whose CAME: notes whether the TERM that came at this time is Slurm's own. One is, until Slurm answers: then this script
# has little time.
signals::ask_whose() {
    local -i code
    retry::is_running "${signals_answer_s}"
    code=$?
    ((code)) || return 0
    signals_slurms_term=1
    ((code != 2)) || signals_unsure=1
    slurm::set_end "$1"
}

# Called repeatedly: where Slurm gave no answer about a TERM, asks again. One of `kit cancel` has still to reach the ranks.
signals::ask_again() {
    local -i code
    [[ -n "${signals_unsure}" ]] || return 0
    retry::is_running "${signals_answer_again_s}"
    code=$?
    ((code != 2)) || return 0
    signals_unsure=""
    ((!code)) || return 0
    signals_slurms_term=""
    slurm::forget_end
    roles::running || return 0
    steps::set_deadline "${KIT_GRACE}" "the ranks did not end within ${KIT_GRACE} s after TERM"
    signals::carry TERM "${KIT_GRACE}"
}

# Notes a preemption with grace, of which Slurm tells only the steps.
signals::note_preemption() {
    signals_got=TERM signals_slurms_term=1
}

# signals::carry NAME[,NAME] SECONDS: sends the signal only to the programs of the ranks, by a separate step on the nodes of the roles that
# still run. A lost node among them would keep the step from starting, so lost nodes are left out.
signals::carry() {
    local -r step="kit-signal-$((++signals_count))"
    local -a nodes lost=()
    mapfile -t nodes < <(roles::nodes_of_ranks)
    if ((KIT_OUTLIVES)) && nodes::look; then
        mapfile -t lost < <(nodes::lost "${nodes[@]}")
        mapfile -t nodes < <(comm -23 <(printf '%s\n' "${nodes[@]}" | sort) <(printf '%s\n' "${lost[@]}" | sort))
    fi
    ((${#nodes[@]})) || return 0
    KIT_NODE_NAMES="${nodes[*]}" steps::start "${step}" "${KIT_SIGNAL_ARGV[0]}" \
        --nodes="${#nodes[@]}" --ntasks="${#nodes[@]}" "${KIT_SIGNAL_ARGV[@]:1}" "$1" "$2"
    signals_carried["${step}"]="${1%%,*}"
}

# Called repeatedly: where a step could not carry its signal, Slurm signals all processes of the ranks' steps.
signals::check_carried() {
    local step
    local -a names
    for step in "${!signals_carried[@]}"; do
        [[ -n "${steps_pid[${step}]:-}" ]] && steps::ended "${step}" || continue
        if ((steps_code)) && roles::running; then
            log::error "${signals_carried[${step}]} did not reach the ranks: the step ended with ${steps_code}; Slurm signals all their processes"
            mapfile -t names < <(roles::with_ranks)
            steps::signal "${signals_carried[${step}]}" "${names[@]}"
        fi
        unset "signals_carried[${step}]"
    done
}
