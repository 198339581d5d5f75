#!/bin/bash
{% for option in sbatch %}
#SBATCH {{ option }}
{% endfor %}
{% for line in explained %}
# {{ line }}
{% endfor %}
# shellcheck source-path=SCRIPTDIR disable=SC2034,SC2054

readonly KIT_RUN_DIR={{ run_dir | sh }}
readonly KIT_CODE={{ code | sh }}
readonly KIT_JOB_NAME={{ job_name | sh }}
readonly -a KIT_IMAGES={{ images | sh }}
readonly KIT_RUNTIME={{ runtime | sh }}
readonly KIT_NODES={{ nodes | sh }}
readonly KIT_WORLD={{ world | sh }}
readonly KIT_DEBUG_DEFAULT={{ debug | sh }}
readonly KIT_LEAD={{ lead | sh }}
readonly KIT_LEAD_SIGNALS={{ lead_signals | sh }}
readonly KIT_GRACE={{ grace | sh }}
readonly KIT_MASTER_PORT_BASE={{ port_base | sh }}
readonly KIT_AVOID_DIR={{ avoid_dir | sh }}
readonly -a KIT_INHERIT={{ inherit | sh }}
readonly KIT_OUTLIVES={{ outlives | sh }}
readonly KIT_STEPS={{ roles | length }}
{% for group in step_groups %}
{% if group.rows | length == 1 %}
readonly -A KIT_STEP_{{ group.number }}={{ roles[group.number].facts | sh }}
readonly -a KIT_STEP_{{ group.number }}_ENV={{ roles[group.number].env | sh }}
readonly -a KIT_STEP_{{ group.number }}_ARGV={{ roles[group.number].argv | sh }}
{% else %}
# Steps {{ group.number }} to {{ group.last }} differ only in the values below.
make_step_{{group.number}}() {
    local -r{% for column in group.columns %} {{ column }}="${{ loop.index }}"{% endfor %}

    local -r upper="${name^^}"
    local -r variable="${upper//-/_}"
    declare -gA "KIT_STEP_${number}"
    declare -ga "KIT_STEP_${number}_ENV" "KIT_STEP_${number}_ARGV"
    local -n facts="KIT_STEP_${number}" env="KIT_STEP_${number}_ENV" argv="KIT_STEP_${number}_ARGV"
    facts=(
{% for word in group.facts %}
        {{ word }}
{% endfor %}
    )
    env=(
{% for word in group.env %}
        {{ word }}
{% endfor %}
    )
    argv=(
{% for word in group.argv %}
        {{ word }}
{% endfor %}
    )
    readonly "KIT_STEP_${number}" "KIT_STEP_${number}_ENV" "KIT_STEP_${number}_ARGV"
}
# {{ group.columns | join(", ") }}
{% for row in group.rows %}
make_step_{{ group.number }} {{ row }}
{% endfor %}
{% endif %}
{% endfor %}
readonly -a KIT_SIGNAL_ARGV={{ signal_argv | sh }}
# The features of this run, in the order in which lib/parts.sh calls them, each with the key or the default that asks for it. Their
# constants are below.
readonly -a KIT_PARTS=(
{% for name, asked_by in parts %}
    {{ name }} # {{ asked_by }}
{% endfor %}
)
{% for name, value in constants %}
readonly {{ name }}={{ value | sh }}
{% endfor %}

# This script runs on the first node, outside any container: under sbatch, or by hand in an allocation of salloc. The kit's pages
# docs/concepts/faults.md and docs/concepts/runs.md say what it does on each signal and failure, and what each file is.
# Below this line nothing is generated.
set -uo pipefail

# include core/own_code.sh
require_own_code bin lib

source "${KIT_RUN_DIR}/lib/clock.sh"
source "${KIT_RUN_DIR}/lib/log.sh"
source "${KIT_RUN_DIR}/lib/numbers.sh"
source "${KIT_RUN_DIR}/lib/environment.sh"
source "${KIT_RUN_DIR}/lib/output_links.sh"
source "${KIT_RUN_DIR}/lib/debug.sh"
source "${KIT_RUN_DIR}/lib/slurm.sh"
source "${KIT_RUN_DIR}/lib/nodes.sh"
source "${KIT_RUN_DIR}/lib/events.sh"
source "${KIT_RUN_DIR}/lib/loops.sh"
source "${KIT_RUN_DIR}/lib/steps.sh"
source "${KIT_RUN_DIR}/lib/failures.sh"
source "${KIT_RUN_DIR}/lib/failure_watch.sh"
source "${KIT_RUN_DIR}/lib/retry.sh"
source "${KIT_RUN_DIR}/lib/endpoints.sh"
source "${KIT_RUN_DIR}/lib/role_policy.sh"
source "${KIT_RUN_DIR}/lib/roles.sh"
source "${KIT_RUN_DIR}/lib/signals.sh"
source "${KIT_RUN_DIR}/lib/task_logs.sh"
source "${KIT_RUN_DIR}/lib/parts.sh"
parts::source

end_attempt() {
    failure_watch::stop
    parts::call after_attempt
}

# Decides how this start ends: changes the caller's `what` from `end`, and its `code`. In this order: a part asks for a requeue; Slurm
# has put the job back by itself; Slurm preempted a job that may go back, and the code is of its signals, not of a `kit cancel`; ranks
# that ended with 0 after a preemption.
# shellcheck disable=SC2317 # called by the EXIT trap
judge_end() {
    if parts::any wants_requeue "${code}"; then
        what=requeue
    elif retry::look; retry::slurm_requeued; then
        what=requeued
    elif ((code)) && [[ -z "${signals_got}" || "${signals_got}" == USR1 || -n "${signals_slurms_term}" ]] && retry::preempted \
        && parts::any may_requeue; then
        what=requeue
    elif ((code == 0)) && retry::preempted; then
        retry::doubt_end
        code="${retry_doubted_code}"
    fi
    parts::call end_judged
}

# shellcheck disable=SC2317 # called by the EXIT trap
finish() {
    local code=$? what=end
    trap - EXIT
    # A subshell killed right after fork inherits the EXIT trap; only the main shell may run it.
    [[ "${BASHPID}" == "$$" ]] || exit "${code}"
    trap '' TERM USR1 USR2 INT HUP QUIT
    end_attempt
    signals::ask_again
    judge_end
    # Do this first: after a TERM, Slurm kills this script within seconds.
    [[ "${what}" != end ]] || retry::record_end "${code}"
    steps::end_all
    parts::call end
    parts::call stopped
    failures::release_space
    task_logs::merge
    if [[ "${what}" == requeue ]] && ! parts::any requeue "${code}"; then
        # Slurm refused.
        what=end
        retry::record_end "${code}"
    fi
    case "${what}" in
        requeued)
            log::info "exit code ${code}; Slurm has put the job back into the queue"
            events::record requeue exit_code "${code}"
            ;;
        end)
            retry::end "${code}"
            parts::call closed
            ;;
    esac
    # `kit cancel` signals this script alone: scancel would end containers before their ranks have saved. Now Slurm is told of it.
    if [[ -n "${environment_batch}" && "${what}" == end && "${signals_got}" == TERM && -z "${signals_slurms_term}" ]]; then
        slurm::ask scancel "${environment_job}" 2>/dev/null
    fi
    exit "${code}"
}

train() {
    local -i code
    while true; do
        retry::begin_attempt || return 1
        parts::call before_attempt
        failure_watch::start
        roles::run
        code=$?
        end_attempt
        if ! parts::any again "${code}"; then
            parts::call after_last_attempt
            return "${code}"
        fi
    done
}

main() {
    # Other users must not change the kit's files, nor the log that Slurm has made. The ranks get the user's own umask back. srun
    # would take the submitter's.
    KIT_UMASK="$(umask)"
    export KIT_UMASK
    umask g-w,o-w
    unset SLURM_UMASK
    [[ ! -f /dev/stdout ]] || chmod go-w /dev/stdout || true
    environment::require_allocation
    output_links::link
    trap finish EXIT
    environment::scrub "${KIT_INHERIT[@]}"
    debug::enable_if_asked "${DEBUG:-${KIT_DEBUG_DEFAULT}}"
    signals::trap

    nodes::list || exit 1
    events::record start nodes "${SLURM_JOB_NODELIST}"
    # The part preflight starts the nodes' checks here, and waits for them below, at `check`.
    parts::require listed || exit $?
    parts::require prepare || exit $?
    nodes::resolve || exit 1
    nodes::banner
    parts::call begun
    failures::reserve_space
    parts::require check_image || exit $?
    events::record phase name image
    parts::require stage || exit $?
    # The checks have run meanwhile. From here on, the job waits for them.
    events::record phase name preflight
    parts::require check || exit $?
    parts::require before_ranks || exit $?
    train
    exit $?
}

main "$@"
