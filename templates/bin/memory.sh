#!/bin/bash
# memory.sh: keeps this node's folder for checkpoints in memory (lib/kit_memory.py) while the job lives, and removes it at the end. It
# is a Slurm step of its own, outside the container: the ranks may end and start again meanwhile.
set -uo pipefail

# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/../lib/log.sh"
# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/../lib/rank_progress.sh"
# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/../lib/memory_checkpoints.sh"
# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/../lib/orphans.sh"

main() {
    local sleeper=""
    # Before the lock is taken: this loop outlives a killed keeper by some seconds, and must not hold it.
    if orphans::find_slurmstepd; then
        orphans::end_without "${KIT_SLURMSTEPD}" &
    fi
    # What killed jobs of this user have left takes memory that this job needs.
    rank_progress::sweep
    trap 'memory_checkpoints::end; kill "${sleeper}" 2>/dev/null; exit 0' TERM HUP INT
    if ! memory_checkpoints::begin; then
        log::error "no folder for checkpoints in memory: ${memory_checkpoints_folder} cannot be made, or is somebody else's"
        exit 1
    fi
    while true; do
        sleep infinity {memory_checkpoints_fd}<&- &
        sleeper=$!
        wait "${sleeper}"
    done
}

main "$@"
