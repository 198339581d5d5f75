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
readonly KIT_STEP={{ step | sh }}
readonly -a KIT_STEP_ARGV={{ step_argv | sh }}
readonly -a KIT_MONITOR_ARGV={{ monitor_argv | sh }}
readonly -a KIT_PREFLIGHT_ARGV={{ preflight_argv | sh }}

# Told apart from every code that a program returns by convention: BSD's sysexits call it EX_OSFILE.
readonly KIT_PREFLIGHT_FAILED=72

# This script runs on the first node, outside any container.
# Below this line nothing is generated.
set -uo pipefail

source "${KIT_RUN_DIR}/lib/log.sh"
source "${KIT_RUN_DIR}/lib/debug.sh"
source "${KIT_RUN_DIR}/lib/nodes.sh"
source "${KIT_RUN_DIR}/lib/events.sh"
source "${KIT_RUN_DIR}/lib/heartbeat.sh"
source "${KIT_RUN_DIR}/lib/steps.sh"
source "${KIT_RUN_DIR}/lib/failures.sh"

# shellcheck disable=SC2317 # called by the EXIT trap
finish() {
    local -r code=$?
    trap - EXIT
    trap '' TERM USR1 INT HUP
    steps::end_all
    heartbeat::stop
    events::record end exit_code "${code}"
    log::info "end of job ${SLURM_JOB_ID}: exit code ${code}"
    exit "${code}"
}

main() {
    trap finish EXIT
    export KIT_RESTART_COUNT="${SLURM_RESTART_COUNT:-0}"
    debug::enable_if_asked "${DEBUG:-${KIT_DEBUG_DEFAULT}}"

    nodes::resolve || exit 1
    nodes::choose_port "${KIT_MASTER_PORT_BASE}" || exit 1
    nodes::banner
    events::record start nodes "${SLURM_JOB_NODELIST}" master "${KIT_MASTER_ADDR}:${KIT_MASTER_PORT}"

    trap 'steps::forward TERM "${KIT_STEP}"' TERM
    trap 'steps::forward USR1 "${KIT_STEP}"' USR1
    steps::start kit-preflight "${KIT_PREFLIGHT_ARGV[@]}"
    if ! steps::wait kit-preflight; then
        log::error "preflight failed on the nodes named above; no rank was started"
        exit "${KIT_PREFLIGHT_FAILED}"
    fi

    failures::prepare
    heartbeat::start "${KIT_HEARTBEAT}"
    if ((${#KIT_MONITOR_ARGV[@]})); then
        steps::start kit-monitor "${KIT_MONITOR_ARGV[@]}"
    fi

    steps::start "${KIT_STEP}" "${KIT_STEP_ARGV[@]}"
    steps::wait "${KIT_STEP}"
    local -ri code=$?
    if ((code)); then
        failures::explain "${code}"
        exit $?
    fi
    exit 0
}

main "$@"
