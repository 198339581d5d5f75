# shellcheck shell=bash
# Questions to Slurm. Slurm's commands wait for a controller that does not answer, some of them for minutes. After Slurm's own TERM,
# the batch script has only KillWait seconds. If a question took longer, Slurm would kill the script, and the run would have no exit
# code on record. So from that TERM on, each question has a limit.

# The time (EPOCHSECONDS) at which Slurm kills this script; 0: Slurm has not sent its TERM.
declare -i slurm_killed_at=0
# Seconds that the script needs after its last question; seconds that every question gets; Slurm's default of KillWait.
readonly slurm_reserve_s=3 slurm_least_s=2 slurm_kill_wait_s=30
# What a command returns whose time was up: 128 + SIGKILL.
readonly slurm_no_answer=137

# slurm::ask COMMAND WORD…: runs the command, and returns its code.
slurm::ask() {
    if ((!slurm_killed_at)); then
        "$@"
        return $?
    fi
    local -i seconds=$((slurm_killed_at - EPOCHSECONDS - slurm_reserve_s))
    slurm::ask_for "$((seconds > slurm_least_s ? seconds : slurm_least_s))" "$@"
}

# slurm::ask_for SECONDS COMMAND WORD…: the same with a limit. The command gets KILL then: while the batch script ends, its children
# ignore TERM.
slurm::ask_for() {
    timeout --foreground --signal=KILL "$@"
}

# slurm::set_end TIME: Slurm sent its TERM at this time (EPOCHSECONDS).
slurm::set_end() {
    slurm_killed_at=$(($1 + $(slurm::kill_wait)))
}

slurm::forget_end() {
    slurm_killed_at=0
}

# Prints the seconds until Slurm kills this script, or of a TERM that came only to the steps, those from it to the KILL.
slurm::seconds_left() {
    if ((slurm_killed_at)); then
        printf '%d' "$((slurm_killed_at - EPOCHSECONDS))"
    else
        slurm::kill_wait
    fi
}

slurm::kill_wait() {
    local -i seconds
    seconds="$(slurm::ask_for "${slurm_least_s}" scontrol show config 2>/dev/null | awk '$1 == "KillWait" { print $3 }')"
    printf '%d' "$((seconds ? seconds : slurm_kill_wait_s))"
}
