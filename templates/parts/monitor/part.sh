# shellcheck shell=bash
# The GPU monitor (bin/gpu-monitor.sh), which also collects the ranks' reports.

# shellcheck source=/dev/null
source "${KIT_RUN_DIR}/lib/reports.sh"

monitor_started=""

# Starts the monitor, once, when the first step of the job's own programs was started: it must not delay them.
monitor::programs_started() {
    [[ -z "${monitor_started}" && -n "${KIT_MONITOR_ARGV:-}" ]] || return 0
    monitor_started=1
    steps::start kit-monitor "${KIT_MONITOR_ARGV[@]}"
}

# On this node the collector may have been killed after the last rank looked for it.
monitor::stopped() {
    reports::remove_unused
}
