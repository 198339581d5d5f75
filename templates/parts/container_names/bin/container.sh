#!/bin/bash
# container.sh PREFIX [ACTIVE-JOB]…: one task per node, outside the container. Removes the containers that Pyxis unpacked here for
# this start of the job, once it is told to end and no rank is left. Slurm itself sends it TERM when the batch script cannot. At its
# start it removes the containers of earlier jobs that ended with KILL or lost their node.
set -uo pipefail

# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/../lib/log.sh"

# As Pyxis does: only Enroot's own configuration names the folder of the containers.
unset ENROOT_DATA_PATH ENROOT_RUNTIME_PATH ENROOT_CACHE_PATH ENROOT_TEMP_PATH ENROOT_LIBRARY_PATH ENROOT_SYSCONF_PATH

# Lists containers of this user's runs only. Pyxis puts pyxis_ before a name, and pyxis_<job>_ with container_scope=job.
list() {
    enroot list 2>/dev/null | grep -E '^pyxis_([0-9]+_)?kit-[0-9]+-[0-9]+-'
}

remove() {
    log::info "removes container $1"
    enroot remove --force "$1" </dev/null
}

# Removes containers of jobs that are gone, and of earlier starts of this job. If this job is not among the active ones, squeue
# failed.
remove_stale() {
    local -r prefix="$1"
    shift
    local name job
    [[ " $* " == *" ${SLURM_JOB_ID} "* ]] || return 0
    while read -r name; do
        job="${name##*kit-}"
        job="${job%%-*}"
        [[ "${name}" == *"${prefix}"-* ]] && continue
        [[ "${job}" != "${SLURM_JOB_ID}" && " $* " == *" ${job} "* ]] && continue
        remove "${name}"
    done < <(list)
}

ranks_here() {
    local -a of_job
    mapfile -t of_job < <(grep -lzxF -- "SLURM_JOB_ID=${SLURM_JOB_ID}" /proc/[0-9]*/environ 2>/dev/null)
    ((${#of_job[@]})) && grep -qz '^RANK=' "${of_job[@]}" 2>/dev/null
}

main() {
    local -r prefix="$1"
    local name ended="" sleeper=""
    # Slurm signals one process after the other. If the sleep dies first, the next one must not outlive this script.
    trap 'ended=1; [[ -z "${sleeper}" ]] || kill "${sleeper}" 2>/dev/null' TERM INT HUP
    trap '' USR1 USR2
    remove_stale "$@"
    while [[ -z "${ended}" ]]; do
        sleep infinity &
        sleeper="$!"
        # The signal may have come before the line above.
        [[ -z "${ended}" ]] || kill "${sleeper}"
        wait "${sleeper}"
    done
    # Ranks still save, and need the files that are to be removed.
    while ranks_here; do
        sleep 0.2
    done
    # Repeated, because a step that was still unpacking may have added one.
    while name="$(list | grep -m 1 -F -- "${prefix}-")"; do
        remove "${name}"
        sleep 0.1
    done
}

main "$@"
