#!/bin/bash
# checked.sh [COUNT WORD…]… 0 COMMAND…: runs each step of COUNT words, then the command. Where a step fails, it exits with
# 72, like the preflight of a batch job. `kit shell` uses it, because it has no batch script. It runs where salloc does.
# shellcheck source-path=SCRIPTDIR
set -uo pipefail

source "${BASH_SOURCE[0]%/*}/../lib/clock.sh"
source "${BASH_SOURCE[0]%/*}/../lib/log.sh"
source "${BASH_SOURCE[0]%/*}/../lib/events.sh"
# shellcheck disable=SC2034 # events.sh reads them
KIT_RUN_DIR="${BASH_SOURCE[0]%/bin/*}" KIT_RESTART_COUNT=0

# What the run's folder tells of a shell: without it, the run would be waiting for ever.
# shellcheck disable=SC2317 # called by the EXIT trap
record_end() {
    local -r code=$?
    trap '' HUP TERM INT
    events::record end exit_code "${code}"
}

main() {
    local -ri failed=72
    mkdir -p -- "${BASH_SOURCE[0]%/bin/*}/state/preflight"
    local -i count
    events::record start nodes "${SLURM_JOB_NODELIST:-}"
    trap record_end EXIT
    trap 'exit 129' HUP
    trap 'exit 143' TERM
    while ((count = $1)); do
        shift
        if ! "${@:1:count}" </dev/null; then
            log::error "no shell is opened: the checks of a node failed"
            exit "${failed}"
        fi
        shift "${count}"
    done
    shift
    "$@"
}

main "$@"
