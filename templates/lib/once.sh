# shellcheck shell=bash
# shellcheck disable=SC2154 # lib/steps.sh, failures.sh and environment.sh set steps_code, failures_name and environment_job
# Runs the lines of [once]: on the first node, before any rank, once per job. A start after a requeue does not repeat them.

# Seconds between checks for lines that lost their slurmstepd. srun would wait for them forever.
readonly once_look_s=5

once::before_ranks() {
    local -r done_file="${KIT_RUN_DIR}/state/once-${SLURM_JOB_ID}"
    local -i code once_lost=0
    [[ ! -e "${done_file}" ]] || return 0
    events::record phase name once
    failures::prepare once
    steps::set_env "KIT_FAILURES=${failures_name}"
    KIT_NODE_NAMES="${KIT_NODE_NAMES%% *}" steps::start kit-once "${KIT_ONCE_ARGV[@]}"
    steps::start_monitor
    once::wait
    # 128 + SIGKILL, as for a rank that is killed.
    code=$((once_lost ? 137 : steps_code))
    [[ -z "${signals_got}" ]] || return 143
    if ((code)); then
        log::error "the lines of [once] ended with exit code ${code}; no rank was started"
        failures::tail "${KIT_RUN_DIR}/logs/once.log"
        return "${code}"
    fi
    : >"${done_file}"
}

# Waits until the step has ended. Slurm does not notice when the slurmstepd of its lines is gone. The lines record that themselves
# (orphans.sh), but under Pyxis the image's files vanish at the same moment, and nothing in the container can write. So this script
# checks too.
once::wait() {
    local -i next=$((EPOCHSECONDS + once_look_s)) missed=0
    local once_step=""
    until steps::ended kit-once; do
        if ((EPOCHSECONDS >= next)); then
            next=$((EPOCHSECONDS + once_look_s))
            # Slurm lists a step some moments before its slurmstepd exists.
            if once::misses_slurmstepd; then missed+=1; else missed=0; fi
            if ((missed >= 2)) || failures::any once; then
                steps::doom kit-once "slurmstepd, by which Slurm runs it, is gone"
                once_lost=1
            fi
        fi
        steps::enforce_deadline kit-once
        sleep 0.2
    done
}

# Whether Slurm has a step that no slurmstepd runs. Checked only where it can be seen: on this node, which has the batch script's
# slurmstepd.
once::misses_slurmstepd() {
    [[ "${KIT_NODE_NAMES%% *}" == "${SLURMD_NODENAME:-}" ]] && once::has_slurmstepd batch || return 1
    # Ask once: the number does not change.
    [[ -n "${once_step}" ]] || read -r once_step _ < <(steps::ids kit-once) || return 1
    ! once::has_slurmstepd "${once_step##*.}"
}

# once::has_slurmstepd STEP: looks for the title that slurmstepd gives itself.
once::has_slurmstepd() {
    local path line
    while read -r path; do
        line=""
        { read -r line <"${path%/cmdline}/stat"; } 2>/dev/null
        [[ "${line}" != *"(slurmstepd) "[!ZX]* ]] || return 0
    done < <(grep -lsaF "slurmstepd: [${environment_job}.$1]" /proc/[0-9]*/cmdline)
    return 1
}
