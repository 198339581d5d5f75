# shellcheck shell=bash
# Parts: features that are in a run only where a key of its job asks for them. KIT_PARTS has their names. A part
# has its functions in lib/NAME.sh, and those that are named after a phase are called here:
#
#   listed              the nodes are listed, and nothing that takes time has begun
#   prepare             the nodes may check themselves meanwhile
#   begun               the nodes' addresses are known
#   check_image         once in each start of the job, before its image comes to the nodes
#   stage               the image comes to the nodes; before_stage, after_stage: around that
#   check               the nodes are checked
#   before_ranks        once, after all of these. The node checks may queue the job again; here, Slurm may be told not to
#                       Up to here, a code other than 0 ends the job, but for those of `begun`, `before_stage` and `after_stage`.
#   first_start_s       prints the seconds that the first start of a container may take longer
#   placed              the roles have their nodes; with a role's number, it has others
#   check_role          whether the part itself looks if the role of this number is up; it changes the state
#   step_options        a step is about to start with these words; a part may add options of srun
#   programs_started    a step of the job's own programs was started; called repeatedly
#   before_attempt      each time before the ranks start; after_attempt: they have ended; after_last_attempt: they do not start again
#   held                whether the ranks of this attempt have stopped in a step that they can start again in
#   start_held          starts them there; step_started: the ranks have another step
#   has_ended           whether a part has ended the step of this role itself
#   role_ended          a role's step has ended; a part may change `code`
#   again               whether the ranks start again in this allocation, after this exit code
#   trouble             a loop in the background has sent USR2
#   furthest            prints how far the ranks have come
#   judge_stall         the stall watch looks, and may set the fields of its alarm; say_stall: reports an alarm that a part has raised
#   event               something was added to the run's events that notices may be about
#   keeps_step          whether a step is not ended with the others; steps_ended: those have ended
#   wants_requeue       whether the job goes back to the queue after this exit code; may_requeue: whether Slurm would let it
#   doubted             Slurm has preempted the job, and its ranks ended with 0
#   end_judged          it is known how this start ends; a part may change `code`
#   requeue             puts the job back into the queue; fails where Slurm refuses
#   end                 all steps are gone; stopped: nothing else is started; closed: the end is recorded
#
# A site adds its own without changing the kit: [parts] in the cluster's file (docs/guides/administrator.md). How the kit's own are
# written: docs/internals/parts.md.

parts::source() {
    local part
    for part in "${KIT_PARTS[@]}"; do
        # shellcheck source=/dev/null
        source "${KIT_RUN_DIR}/lib/${part}.sh"
    done
}

# parts::call PHASE [WORD…]: calls a phase of all parts, whatever they return.
parts::call() {
    local part
    for part in "${KIT_PARTS[@]}"; do
        if declare -F "${part}::$1" >/dev/null; then
            "${part}::$1" "${@:2}"
        fi
    done
    return 0
}

# parts::require PHASE [WORD…]: calls a phase of the parts up to the first that fails, and returns its code.
parts::require() {
    local part
    for part in "${KIT_PARTS[@]}"; do
        if declare -F "${part}::$1" >/dev/null; then
            "${part}::$1" "${@:2}" || return $?
        fi
    done
}

# parts::any PHASE [WORD…]: whether a part has the phase and succeeds. The parts after it are not called.
parts::any() {
    local part
    for part in "${KIT_PARTS[@]}"; do
        if declare -F "${part}::$1" >/dev/null && "${part}::$1" "${@:2}"; then
            return 0
        fi
    done
    return 1
}
