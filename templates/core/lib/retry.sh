# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # names that other libraries set or read
# Attempts. KIT_RESTART_COUNT counts every start of the ranks in this run, inside one allocation and over requeues. So programs see
# a number that only grows, and every attempt has its own port and its own record of failures.

readonly retry_file="${KIT_RUN_DIR}/state/attempts"
# The value until the first attempt.
export KIT_RESTART_COUNT="${SLURM_RESTART_COUNT:-0}"
# 128 + SIGTERM: the exit code of a job that was preempted and whose ranks ended with 0.
readonly retry_doubted_code=143
# Failed nodes that the next start must leave out.
retry_without=""
# What retry::look has read, and whether it has.
retry_job="" retry_looked=""

retry::leave_out() {
    retry_without="$1"
}

# Prints the seconds that the ranks get after a signal before they are killed. It is less than Slurm gives this script, which must
# still report and clean up.
retry::time_to_save() {
    local -i seconds=30
    case "$1" in
        USR1) seconds=$((KIT_LEAD > 30 ? KIT_LEAD - 15 : KIT_LEAD ? KIT_LEAD / 2 : 120)) ;;
        TERM | INT)
            # While Slurm lets the job run, only this script sets a limit.
            if [[ -z "${signals_slurms_term}" ]]; then
                printf '%d' "${KIT_GRACE}"
                return 0
            fi
            seconds="$(slurm::seconds_left)"
            seconds=$((seconds > 7 ? seconds - 5 : 2))
            ;;
    esac
    printf '%d' "${seconds}"
}

retry::count_start() {
    local attempts=0
    [[ -r "${retry_file}" ]] && read -r attempts <"${retry_file}"
    numbers::keep attempts
    export KIT_RESTART_COUNT="${attempts}"
    printf '%d\n' "$((attempts + 1))" >"${retry_file}.new" && mv -f -- "${retry_file}.new" "${retry_file}"
}

retry::begin_attempt() {
    retry::count_start
    nodes::choose_master_port || return 1
    endpoints::place || return 1
    # Unless a signal came, the ranks have the whole time of the job.
    [[ -n "${signals_got}" ]] || steps::clear_deadline
    # shellcheck disable=SC2086 # names of nodes
    log::info "attempt ${KIT_RESTART_COUNT}: ranks on $(nodes::short ${KIT_NODE_NAMES}); master ${KIT_MASTER_ADDR}:${KIT_MASTER_PORT}"
    events::record attempt nodes "${KIT_NODE_NAMES// /,}" master "${KIT_MASTER_ADDR}:${KIT_MASTER_PORT}" \
        spare "$((${#nodes_all[@]} - KIT_NODES))"
}

# retry::is_running SECONDS: whether the job is running. It is not while Slurm is ending it. Returns 2 where Slurm gives no answer
# in this time.
retry::is_running() {
    local state
    state="$(slurm::ask_for "$1" squeue --noheader --jobs="${environment_job}" --format=%T 2>/dev/null)"
    (($? != slurm_no_answer)) || return 2
    [[ "${state}" == RUNNING ]]
}

# Prints Slurm's record of the job: that of retry::look, else as it is now.
retry::job() {
    if [[ -n "${retry_looked}" ]]; then
        printf '%s' "${retry_job}"
    else
        slurm::ask scontrol show job "${environment_job}" --oneliner 2>/dev/null
    fi
}

# Reads Slurm's record of the job once and keeps it: each call of scontrol may wait for a busy controller.
retry::look() {
    [[ -z "${environment_batch}" ]] || retry_job="$(retry::job)"
    retry_looked=1
}

# Whether the TERM came from Slurm's own requeue, which has then already counted the restart.
retry::slurm_requeued() {
    [[ "${signals_got}" == TERM ]] || return 1
    local restarts
    restarts="$(retry::job | grep -oP '(?<= Restarts=)\d+')"
    ((${restarts:-0} > ${SLURM_RESTART_COUNT:-0}))
}

# Whether Slurm has preempted the job since this start; the mark of an earlier preemption may stay over a requeue. With a GraceTime
# only the steps are told, by TERM, or with preempt_send_user_signal only this script, by USR1. A job that ends within the grace
# must put itself back into the queue.
retry::preempted() {
    [[ -n "${environment_batch}" ]] && retry::job | awk '
        { for (i = 1; i <= NF; i++) { at = index($i, "="); value[substr($i, 1, at - 1)] = substr($i, at + 1) } }
        END { exit !(value["PreemptTime"] ~ /^[0-9]/ && value["PreemptTime"] >= value["StartTime"]) }'
}

# Handles a preempted job whose ranks ended with 0 after the signal. It may be done, or may only have saved, so it does not count as
# done. As after any 0, it is not queued again.
retry::doubt_end() {
    log::info "Slurm preempted the job, and the ranks ended with 0: whether they were done is not known, so the run ends with ${retry_doubted_code}"
    parts::call doubted
}

# Before anything that takes time, and once.
retry::record_end() {
    rm -f -- "${KIT_RUN_DIR}/.secrets"
    events::record end exit_code "$1"
}

# The last words, when all steps are gone. The file has the time: the ledger counts the job's teardown up to it.
retry::end() {
    local now
    clock::now now
    printf '%s\n' "${now}" >"${KIT_RUN_DIR}/state/closed" || true
    log::info "end of job ${SLURM_JOB_ID}: exit code $1"
    if [[ -n "${environment_batch}" ]] && ! retry::has_slurmstepd; then
        log::error "the batch script's slurmstepd is gone: killed, or out of memory; Slurm would not notice the end, so the job is cancelled"
        slurm::ask scancel "${environment_job}" 2>/dev/null
    fi
}

# Whether the process that started this script is still its parent. An orphan gets another parent.
retry::has_slurmstepd() {
    local line=""
    { IFS= read -r -d '' line </proc/$$/stat; } 2>/dev/null
    read -r _ line _ <<<"${line##*) }"
    [[ "${line}" == "${PPID}" ]]
}
