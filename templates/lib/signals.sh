# shellcheck shell=bash
# Signals to the batch script. The lead signal (USR1) and a request to end (TERM: a cancel, preemption, a node that goes down) go to the
# ranks, which save and end. INT is the user's Ctrl-C where the script runs by hand; a second one does not wait for the ranks.

# The signal that came last, and whether it was a TERM of Slurm's own.
signals_got="" signals_slurms_term=""

signals::trap() {
    local name
    for name in TERM USR1 INT; do
        # shellcheck disable=SC2064 # the name of now
        trap "signals::pass_on ${name}" "${name}"
    done
    trap signals::on_trouble USR2
}

# shellcheck disable=SC2317 # called by traps
signals::pass_on() {
    local -r again="${signals_got}"
    signals_got="$1"
    if [[ "$1" == INT && "${again}" == INT ]]; then
        steps::set_deadline 0 "Ctrl-C came twice"
    elif ! roles::running; then
        steps::set_deadline 0 "got $1, and there are no ranks yet"
    else
        local seconds
        seconds="$(retry::time_to_save "$1")"
        steps::set_deadline "${seconds}" "the ranks did not end within ${seconds} s after $1"
    fi
    log::info "got $1; passing it on to the ranks"
    events::record signal name "$1"
    if [[ "$1" == TERM ]] && ! retry::is_running; then
        signals_slurms_term=1
    else
        steps::signal_ranks "${1/INT/TERM}"
    fi
}

# USR2 comes from failure_watch.sh alone.
# shellcheck disable=SC2317 # called by a trap
signals::on_trouble() {
    [[ -z "${signals_got}" ]] || return 0
    role_policy::doom
}

# Of a preemption with grace only the steps hear.
signals::note_preemption() {
    signals_got=TERM signals_slurms_term=1
}
