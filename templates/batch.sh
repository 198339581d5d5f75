#!/bin/bash
{% for option in sbatch %}
#SBATCH {{ option }}
{% endfor %}
{% for line in explained %}
# {{ line }}
{% endfor %}
# shellcheck source-path=SCRIPTDIR disable=SC2034,SC2054

readonly KIT_RUN_DIR={{ run_dir | sh }}
readonly KIT_JOB_NAME={{ job_name | sh }}
readonly KIT_IMAGE={{ image | sh }}
readonly KIT_IMAGE_DIGEST={{ image_digest | sh }}
readonly KIT_RUNTIME={{ runtime | sh }}
readonly KIT_NODES={{ nodes | sh }}
readonly KIT_WORLD_SIZE={{ world_size | sh }}
readonly KIT_DEBUG_DEFAULT={{ debug | sh }}
readonly KIT_HEARTBEAT={{ heartbeat | sh }}
readonly KIT_MASTER_PORT_BASE={{ port_base | sh }}
readonly KIT_RETRY_IN_ALLOCATION={{ retry_in_allocation | sh }}
readonly KIT_RETRY_REQUEUE={{ retry_requeue | sh }}
readonly -a KIT_RETRY_CODES={{ retry_codes | sh }}
readonly KIT_PREFLIGHT_TIMEOUT={{ preflight_timeout | sh }}
readonly KIT_PREFLIGHT_ON_FAILURE={{ preflight_on_failure | sh }}
readonly KIT_ALL_REDUCE_TIMEOUT={{ all_reduce_timeout | sh }}
readonly KIT_AVOID_DIR={{ avoid_dir | sh }}
readonly -a KIT_INHERIT={{ inherit | sh }}
readonly KIT_STEP={{ step | sh }}
readonly -a KIT_STEP_ARGV={{ step_argv | sh }}
readonly -a KIT_MONITOR_ARGV={{ monitor_argv | sh }}
readonly -a KIT_PREFLIGHT_ARGV={{ preflight_argv | sh }}
readonly -a KIT_PROBE_ARGV={{ probe_argv | sh }}

# This script runs on the first node, outside any container: under sbatch, or by hand in an allocation that salloc made.
# Below this line nothing is generated.
set -uo pipefail

source "${KIT_RUN_DIR}/lib/log.sh"
source "${KIT_RUN_DIR}/lib/environment.sh"
source "${KIT_RUN_DIR}/lib/debug.sh"
source "${KIT_RUN_DIR}/lib/nodes.sh"
source "${KIT_RUN_DIR}/lib/events.sh"
source "${KIT_RUN_DIR}/lib/heartbeat.sh"
source "${KIT_RUN_DIR}/lib/steps.sh"
source "${KIT_RUN_DIR}/lib/failures.sh"
source "${KIT_RUN_DIR}/lib/checks.sh"
source "${KIT_RUN_DIR}/lib/retry.sh"

# The lead signal (USR1) and a request to end (TERM: scancel, preemption, a node that goes down) go to the ranks, which save and end.
# INT is the user's Ctrl-C where this script runs by hand.
got_signal=""
# shellcheck disable=SC2317 # called by traps
on_signal() {
    got_signal="$1"
    log::info "got $1; passing it on to the ranks"
    events::record signal name "$1"
    steps::signal "${1/INT/TERM}" "${KIT_STEP}"
}

# shellcheck disable=SC2317 # called by the EXIT trap
finish() {
    local -r code=$?
    trap - EXIT
    trap '' TERM USR1 INT HUP
    steps::end_all
    heartbeat::stop
    if retry::wants_requeue "${code}"; then
        retry::requeue "${code}"
    else
        rm -f -- "${KIT_RUN_DIR}/.secrets"
        events::record end exit_code "${code}"
        log::info "end of job ${SLURM_JOB_ID}: exit code ${code}"
    fi
    exit "${code}"
}

train() {
    local -i code
    while true; do
        retry::begin_attempt || return 1
        steps::start "${KIT_STEP}" "${KIT_STEP_ARGV[@]}"
        steps::wait "${KIT_STEP}"
        code=$?
        if ((code)); then
            failures::explain "${code}"
            code=$?
        fi
        retry::again "${code}" || return "${code}"
    done
}

main() {
    environment::require_allocation
    trap finish EXIT
    environment::scrub "${KIT_INHERIT[@]}"
    debug::enable_if_asked "${DEBUG:-${KIT_DEBUG_DEFAULT}}"
    trap 'on_signal TERM' TERM
    trap 'on_signal USR1' USR1
    trap 'on_signal INT' INT

    nodes::resolve || exit 1
    nodes::banner
    events::record start nodes "${SLURM_JOB_NODELIST}"
    checks::nodes || exit $?

    heartbeat::start "${KIT_HEARTBEAT}"
    if ((${#KIT_MONITOR_ARGV[@]})); then
        steps::start kit-monitor "${KIT_MONITOR_ARGV[@]}"
    fi
    checks::all_reduce || exit $?
    train
    exit $?
}

main "$@"
