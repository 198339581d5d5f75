# shellcheck shell=bash
# Records the job's events as JSON lines, which outlive Slurm's own record of it. Values are host lists, numbers and signal names.

events::record() {
    local -r event="$1"
    shift
    local line now
    clock::now now
    printf -v line '{"time": "%(%Y-%m-%dT%H:%M:%S%z)T", "epoch": %s, "event": "%s", "job_id": %s, "restart": %s, "attempt": %s' \
        -1 "${now}" "${event}" "${SLURM_JOB_ID}" "${SLURM_RESTART_COUNT:-0}" "${KIT_RESTART_COUNT}"
    # Slurm sets this from 23.02 on. The time since then is the prolog's.
    [[ "${event}" != start || -z "${SLURM_JOB_START_TIME:-}" ]] || line+=", \"allocated\": \"${SLURM_JOB_START_TIME}\""
    while (($#)); do
        line+=", \"$1\": \"$2\""
        shift 2
    done
    printf '%s}\n' "${line}" >>"${KIT_RUN_DIR}/state/events.jsonl" || true
}
