# shellcheck shell=bash
# Parts: features that are in a run only where a key of its job asks for them. KIT_PARTS has their names. A part
# has its functions in lib/NAME.sh, and those that are named after a phase are called here:
#
#   begun               the batch script has listed its nodes
#   before_stage        the image is about to be copied to the nodes; after_stage: it is there, or could not be copied
#   before_ranks        once, after all checks of the nodes; a code other than 0 ends the job
#   before_attempt      each time before the ranks start; after_attempt: they have ended; after_last_attempt: they do not start again
#   held                whether the ranks of this attempt have stopped in a step that they can start again in
#   start_held          starts them there; step_started: the ranks have another step
#   judge_stall         the stall watch looks, and may set the fields of its alarm; say_stall: reports an alarm that a part has raised
#   event               something was added to the run's events that notices may be about
#   end                 all steps are gone; closed: the end is recorded
#
# docs/internals/parts.md says how to write one.

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
        ! declare -F "${part}::$1" >/dev/null || "${part}::$1" "${@:2}"
    done
    return 0
}

# parts::require PHASE [WORD…]: calls a phase of the parts up to the first that fails, and returns its code.
parts::require() {
    local part
    for part in "${KIT_PARTS[@]}"; do
        ! declare -F "${part}::$1" >/dev/null || "${part}::$1" "${@:2}" || return $?
    done
}

# parts::any PHASE [WORD…]: whether a part has the phase and succeeds. The parts after it are not called.
parts::any() {
    local part
    for part in "${KIT_PARTS[@]}"; do
        ! declare -F "${part}::$1" >/dev/null || ! "${part}::$1" "${@:2}" || return 0
    done
    return 1
}
