# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # names that other libraries set or read
# Starts the ranks again after a failure: in this allocation (`retry.in_allocation`), or after Slurm has queued the job again
# (`retry.requeue`, `slurm.requeue`, `preflight.on_failure`). In a job without these keys, each failure is the end.

declare -gi restarts_in_allocation=0
# Whether another start may help.
restarts_possible=1
readonly restarts_queued_file="${KIT_RUN_DIR}/state/requeues"
# The exit code of a run that makes no progress, and whether this is one. No requeue follows.
readonly restarts_nowhere_code=77 restarts_progress_file="${KIT_RUN_DIR}/state/furthest"
restarts_nowhere=""
# The collector of a node looks every five seconds.
readonly restarts_look_s=6

# Whether to start the ranks again in this allocation.
restarts::again() {
    local -ri code="$1"
    if ((code == 0)) || [[ -n "${signals_got}" ]] || ((restarts_in_allocation >= KIT_RETRY_IN_ALLOCATION)); then
        return 1
    fi
    # shellcheck disable=SC2086 # names of nodes
    nodes::find_lost ${KIT_NODE_NAMES}
    if ! restarts::is_retryable "${code}" && ((${#nodes_bad[@]} == 0)); then
        log::info "exit code ${code} is the program's own; starting it again would not help"
        return 1
    fi
    nodes::choose || return 1
    parts::require check_image || {
        restarts_possible=""
        return 1
    }
    ! restarts::gets_nowhere || return 1
    restarts_in_allocation+=1
    log::info "restart ${restarts_in_allocation} of ${KIT_RETRY_IN_ALLOCATION} in this allocation"
}

# Whether this start and those before it, retry.no_progress in a row, made no step beyond the furthest one. Called once for each
# start, before the next one. A program that reports no steps is started as often as the job allows.
restarts::gets_nowhere() {
    local job="" furthest="" before="" times=0
    ((KIT_NO_PROGRESS)) || return 1
    [[ -r "${restarts_progress_file}" ]] && read -r job before times <"${restarts_progress_file}"
    numbers::keep before times
    # A job's first start has no start before it, whatever an earlier job of the same run folder left there.
    [[ "${job}" == "${SLURM_JOB_ID}" ]] || before=0 times=0
    furthest="$(restarts::read_furthest)"
    if ((times + 1 >= KIT_NO_PROGRESS)) && [[ "${furthest}" == "${before}" ]]; then
        # The last steps may not be collected yet.
        sleep "${restarts_look_s}"
        furthest="$(restarts::read_furthest)"
    fi
    [[ "${furthest}" =~ ^[0-9]{1,18}$ ]] || return 1
    numbers::keep furthest
    if ((furthest > before)); then
        before="${furthest}" times=0
    else
        times=$((times + 1))
    fi
    printf '%s %s %d\n' "${SLURM_JOB_ID}" "${before}" "${times}" >"${restarts_progress_file}.new" \
        && mv -f -- "${restarts_progress_file}.new" "${restarts_progress_file}"
    ((times >= KIT_NO_PROGRESS)) || return 1
    log::error "${times} starts in a row did no step beyond step ${before}: starting again would not help"
    restarts_nowhere=1 restarts_possible=""
}

restarts::read_furthest() {
    local furthest=""
    read -r _ furthest < <(parts::call furthest)
    printf '%s' "${furthest:--}"
}

restarts::is_retryable() {
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
restarts::wants_requeue() {
    local -ri code="$1"
    if ((code == 0)) || [[ "${signals_got}" == TERM || "${signals_got}" == INT || -z "${restarts_possible}" || -z "${environment_batch}" ]]; then
        return 1
    fi
    if [[ -n "${retry_without:-}" ]]; then
        return 0
    fi
    [[ "${signals_got}" == USR1 ]] || restarts::is_retryable "${code}" || return 1
    if (($(restarts::times_queued) >= KIT_RETRY_REQUEUE)); then
        ((KIT_RETRY_REQUEUE == 0)) || log::info "not back to the queue: retry.requeue is ${KIT_RETRY_REQUEUE}, and used up"
        return 1
    fi
    ! restarts::gets_nowhere
}

# The run's exit code is that of a run without progress, whatever the last start's is.
restarts::end_judged() {
    [[ -z "${restarts_nowhere}" ]] || code="${restarts_nowhere_code}"
}

# Prints how often the job has gone back to the queue, as retry.requeue counts it: without Slurm's own requeues where slurm.requeue
# leaves them to Slurm.
restarts::times_queued() {
    local times="${SLURM_RESTART_COUNT:-0}"
    # A job's first start has no requeue before it, whatever an earlier job of the same run folder left there.
    if ((times && !KIT_REQUEUE_CAPPED)); then
        times=0
        [[ -r "${restarts_queued_file}" ]] && read -r times <"${restarts_queued_file}"
        numbers::keep times
    fi
    printf '%d' "${times}"
}

# Whether Slurm lets the job go back to the queue: it refuses a job with Requeue=0, as restarts::before_ranks sets it.
restarts::may_requeue() {
    ! retry::job | grep -qE ' Requeue=0( |$)'
}

# Slurm from 24.05 on would queue the preempted job again by itself.
restarts::doubted() {
    ! restarts::slurm_requeues || slurm::ask scontrol update "JobId=${environment_job}" Requeue=0 || true
}

# Whether Slurm requeues the preempted job by itself once this script ends: from 24.05 on, where PreemptMode is requeue. A requeue
# by the kit would leave Slurm's mark of the preemption on the job. Then the next start would also go back to the queue after its
# end, whatever its code (read in job_complete() of slurmctld, and seen).
restarts::slurm_requeues() {
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
restarts::before_ranks() {
    if ((KIT_REQUEUE_CAPPED && ${SLURM_RESTART_COUNT:-0} >= KIT_RETRY_REQUEUE)) && [[ -n "${environment_batch}" ]]; then
        scontrol update "JobId=${environment_job}" Requeue=0 || true
    fi
}

# Slurm holds a requeued job for the lifetime of a credential: two minutes, unless the site set AuthInfo's cred_expire.
restarts::requeue() {
    log::info "exit code $1; back to the queue (${SLURM_RESTART_COUNT:-0} times so far)${retry_without:+, without ${retry_without}}"
    events::record requeue exit_code "$1"
    if [[ -z "${retry_without:-}" && -z "${signals_slurms_term}" ]]; then
        printf '%d\n' "$(($(restarts::times_queued) + 1))" >"${restarts_queued_file}"
    fi
    if ! retry::preempted || ! restarts::slurm_requeues; then
        slurm::ask scontrol requeue "${environment_job}" || return 1
    fi
    if [[ -n "${retry_without:-}" ]]; then
        restarts::exclude
    fi
}

# Adds nodes to those that the job must not use, which the user, the kit at submit, or an earlier start has set. Also adds nodes on
# which other jobs have failed since then.
restarts::exclude() {
    local now met
    now="$(slurm::ask scontrol show job "${environment_job}" --oneliner 2>/dev/null | grep -oP '(?<= ExcNodeList=)\S+')"
    [[ "${now}" != "(null)" ]] || now=""
    # Only this user's records and root's, as `kit submit` reads them.
    met="$(find "${KIT_AVOID_DIR}" -maxdepth 1 -type f -mtime -1 \( -uid 0 -o -uid "${EUID}" \) -name '[A-Za-z0-9]*' \
        ! -name '*[!A-Za-z0-9_.-]*' -printf '%f\n' 2>/dev/null | grep -vxF -- "${retry_without//,/$'\n'}" | sort | tr '\n' ',')"
    slurm::ask scontrol update "JobId=${environment_job}" "ExcNodeList=${now:+${now},}${met}${retry_without}" || true
}
