#!/bin/bash
# memory.sh: keeps this node's folder for checkpoints in memory (lib/kit_memory.py) while the job lives, and removes it at the end. It
# is a Slurm step of its own, outside the container: the ranks may end and start again meanwhile.
# shellcheck source-path=SCRIPTDIR
set -uo pipefail

source "${BASH_SOURCE[0]%/*}/../lib/clock.sh"
source "${BASH_SOURCE[0]%/*}/../lib/log.sh"
source "${BASH_SOURCE[0]%/*}/../lib/rank_progress.sh"
source "${BASH_SOURCE[0]%/*}/../lib/memory_checkpoints.sh"
source "${BASH_SOURCE[0]%/*}/../lib/orphans.sh"

# Seconds after which the process that waits here is started anew: it outlives a killed keeper by this time at most.
readonly memory_wait_s=5

# Outlives a killed keeper by some seconds, and removes what it has left.
memory::clean_up_after() {
    orphans::end_without "${KIT_SLURMSTEPD}"
    memory_checkpoints::remove_unused
}

main() {
    local sleeper=""
    # Before the lock is taken, which it must not hold.
    if orphans::find_slurmstepd; then
        memory::clean_up_after &
    fi
    # What killed jobs of this user have left takes memory that this job needs.
    rank_progress::sweep
    trap 'memory_checkpoints::remove; kill "${sleeper}" 2>/dev/null; exit 0' TERM HUP INT
    if ! memory_checkpoints::begin; then
        log::error "no folder for checkpoints in memory: ${memory_checkpoints_folder} cannot be made, or is somebody else's"
        exit 1
    fi
    while true; do
        sleep "${memory_wait_s}" {memory_checkpoints_fd}<&- &
        sleeper=$!
        wait "${sleeper}"
    done
}

main "$@"
