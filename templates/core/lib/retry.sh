# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # names that other libraries set or read
# Attempts. KIT_RESTART_COUNT counts every start of the ranks in this run, inside one allocation and over requeues. So programs see
# a number that only grows, and every attempt has its own port and its own record of failures.

readonly retry_file="${KIT_RUN_DIR}/state/attempts" retry_queued_file="${KIT_RUN_DIR}/state/requeues"
declare -i retry_in_allocation=0
# The value until the first attempt.
export KIT_RESTART_COUNT="${SLURM_RESTART_COUNT:-0}"
retry_possible=1
# The exit code of a run that makes no progress, and whether this is one. No requeue follows.
readonly retry_nowhere_code=77 retry_progress_file="${KIT_RUN_DIR}/state/furthest"
# 128 + SIGTERM: the exit code of a job that was preempted and whose ranks ended with 0.
readonly retry_doubted_code=143
# The collector of a node looks every five seconds.
readonly retry_look_s=6
retry_nowhere=""
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

# Whether to start the ranks again in this allocation.
retry::again() {
    local -ri code="$1"
    if ((code == 0)) || [[ -n "${signals_got}" ]] || ((retry_in_allocation >= KIT_RETRY_IN_ALLOCATION)); then
        return 1
    fi
    # shellcheck disable=SC2086 # names of nodes
    nodes::find_lost ${KIT_NODE_NAMES}
    if ! retry::is_retryable "${code}" && ((${#nodes_bad[@]} == 0)); then
        log::info "exit code ${code} is the program's own; starting it again would not help"
        return 1
    fi
    nodes::choose || return 1
    parts::require check_image || {
        retry_possible=""
        return 1
    }
    ! retry::gets_nowhere || return 1
    retry_in_allocation+=1
    log::info "restart ${retry_in_allocation} of ${KIT_RETRY_IN_ALLOCATION} in this allocation"
}

# Whether this start and those before it, retry.no_progress in a row, made no step beyond the furthest one. Called once for each
# start, before the next one. A program that reports no steps is started as often as the job allows.
retry::gets_nowhere() {
    local job="" furthest="" before="" times=0
    ((KIT_NO_PROGRESS)) || return 1
    [[ -r "${retry_progress_file}" ]] && read -r job before times <"${retry_progress_file}"
    numbers::keep before times
    # A job's first start has no start before it, whatever an earlier job of the same run folder left there.
    [[ "${job}" == "${SLURM_JOB_ID}" ]] || before=0 times=0
    furthest="$(retry::furthest)"
    if ((times + 1 >= KIT_NO_PROGRESS)) && [[ "${furthest}" == "${before}" ]]; then
        # The last steps may not be collected yet.
        sleep "${retry_look_s}"
        furthest="$(retry::furthest)"
    fi
    [[ "${furthest}" =~ ^[0-9]{1,18}$ ]] || return 1
    numbers::keep furthest
    if ((furthest > before)); then
        before="${furthest}" times=0
    else
        times=$((times + 1))
    fi
    printf '%s %s %d\n' "${SLURM_JOB_ID}" "${before}" "${times}" >"${retry_progress_file}.new" \
        && mv -f -- "${retry_progress_file}.new" "${retry_progress_file}"
    ((times >= KIT_NO_PROGRESS)) || return 1
    log::error "${times} starts in a row did no step beyond step ${before}: starting again would not help"
    retry_nowhere=1 retry_possible=""
}

retry::furthest() {
    local furthest=""
    read -r _ furthest < <(parts::call furthest)
    printf '%s' "${furthest:--}"
}

retry::is_retryable() {
    local code
    if (($1 == failures_stalled_code)); then
        [[ "${KIT_ON_STALL:-}" == restart ]]
        return $?
    fi
    for code in "${KIT_RETRY_CODES[@]}"; do
        ((code == $1)) && return 0
    done
    return 1
}

# Whether the job goes back to the queue: after the lead signal, a retryable code, or a failed node that it must leave out. Never
# after a TERM, which comes from scancel, or from a preemption after which Slurm requeues by itself.
retry::wants_requeue() {
    local -ri code="$1"
    if ((code == 0)) || [[ "${signals_got}" == TERM || "${signals_got}" == INT || -z "${retry_possible}" || -z "${environment_batch}" ]]; then
        return 1
    fi
    if [[ -n "${retry_without:-}" ]]; then
        return 0
    fi
    if (($(retry::times_queued) >= KIT_RETRY_REQUEUE)); then
        return 1
    fi
    [[ "${signals_got}" == USR1 ]] || retry::is_retryable "${code}" || return 1
    ! retry::gets_nowhere
}

# Prints how often the job has gone back to the queue, as retry.requeue counts it: without Slurm's own requeues where slurm.requeue
# leaves them to Slurm.
retry::times_queued() {
    local times="${SLURM_RESTART_COUNT:-0}"
    # A job's first start has no requeue before it, whatever an earlier job of the same run folder left there.
    if ((times && !KIT_REQUEUE_CAPPED)); then
        times=0
        [[ -r "${retry_queued_file}" ]] && read -r times <"${retry_queued_file}"
        numbers::keep times
    fi
    printf '%d' "${times}"
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

# Whether Slurm lets the job go back to the queue: it refuses a job with Requeue=0 (sbatch --no-requeue, or retry::cap_slurm).
retry::may_requeue() {
    ! retry::job | grep -qE ' Requeue=0( |$)'
}

# Handles a preempted job whose ranks ended with 0 after the signal. It may be done, or may only have saved, so it does not count as
# done. As after any 0, it is not queued again, which Slurm from 24.05 on would do by itself.
retry::doubt_end() {
    log::info "Slurm preempted the job, and the ranks ended with 0: whether they were done is not known, so the run ends with ${retry_doubted_code}"
    ! retry::slurm_requeues || slurm::ask scontrol update "JobId=${environment_job}" Requeue=0 || true
}

# Whether Slurm requeues the preempted job by itself once this script ends: from 24.05 on, where PreemptMode is requeue. A requeue
# by the kit would leave Slurm's mark of the preemption on the job. Then the next start would also go back to the queue after its
# end, whatever its code (read in job_complete() of slurmctld, and seen).
retry::slurm_requeues() {
    local release=0 type mode own=""
    read -r release type mode < <(slurm::ask scontrol show config 2>/dev/null | awk '
        $1 == "SLURM_VERSION" { split($3, part, "."); release = part[1] * 100 + part[2] }
        $1 == "PreemptType" { type = $3 }
        $1 == "PreemptMode" { mode = $3 }
        END { print release + 0, type, mode }')
    numbers::keep release
    ((release >= 2405)) || return 1
    if [[ "${type}" == preempt/qos ]]; then
        own="$(slurm::ask sacctmgr --noheader --parsable2 show qos "${SLURM_JOB_QOS:-normal}" format=PreemptMode 2>/dev/null)"
        [[ "${own}" != cluster ]] || own=""
    else
        own="$(slurm::ask scontrol show partition "${SLURM_JOB_PARTITION:-}" --oneliner 2>/dev/null | grep -oP '(?<= PreemptMode=)\S+')"
    fi
    [[ "${own:-${mode}}" =~ ^[Rr][Ee][Qq][Uu][Ee][Uu][Ee]$ ]] \
        && retry::job | grep -qE ' Requeue=1( |$)'
}

# Slurm requeues a job that loses its node, without a limit, so a node that breaks every job would never be noticed. Once the times
# of retry.requeue are used up, this tells Slurm not to requeue, unless slurm.requeue leaves it to Slurm.
retry::cap_slurm() {
    if ((KIT_REQUEUE_CAPPED && ${SLURM_RESTART_COUNT:-0} >= KIT_RETRY_REQUEUE)) && [[ -n "${environment_batch}" ]]; then
        scontrol update "JobId=${environment_job}" Requeue=0 || true
    fi
}

# Slurm holds a requeued job for the lifetime of a credential: two minutes, unless the site set AuthInfo's cred_expire.
retry::requeue() {
    log::info "exit code $1; back to the queue (${SLURM_RESTART_COUNT:-0} times so far)${retry_without:+, without ${retry_without}}"
    events::record requeue exit_code "$1"
    if [[ -z "${retry_without:-}" && -z "${signals_slurms_term}" ]]; then
        printf '%d\n' "$(($(retry::times_queued) + 1))" >"${retry_queued_file}"
    fi
    if ! retry::preempted || ! retry::slurm_requeues; then
        slurm::ask scontrol requeue "${environment_job}" || return 1
    fi
    if [[ -n "${retry_without:-}" ]]; then
        retry::exclude
    fi
}

# Adds nodes to those that the job must not use, which the user, the kit at submit, or an earlier start has set. Also adds nodes on
# which other jobs have failed since then.
retry::exclude() {
    local now met
    now="$(slurm::ask scontrol show job "${environment_job}" --oneliner 2>/dev/null | grep -oP '(?<= ExcNodeList=)\S+')"
    [[ "${now}" != "(null)" ]] || now=""
    # Only this user's records and root's, as `kit submit` reads them.
    met="$(find "${KIT_AVOID_DIR}" -maxdepth 1 -type f -mtime -1 \( -uid 0 -o -uid "${EUID}" \) -name '[A-Za-z0-9]*' \
        ! -name '*[!A-Za-z0-9_.-]*' -printf '%f\n' 2>/dev/null | grep -vxF -- "${retry_without//,/$'\n'}" | sort | tr '\n' ',')"
    slurm::ask scontrol update "JobId=${environment_job}" "ExcNodeList=${now:+${now},}${met}${retry_without}" || true
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
