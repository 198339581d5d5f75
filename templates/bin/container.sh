#!/bin/bash
# container.sh PREFIX [ACTIVE-JOB]…: one task per node, outside the container: removes the containers that Pyxis unpacked here for this
# start of the job, once it is told to end and no rank is left. Slurm itself tells it by TERM when the batch script cannot. What an end
# with KILL, or a lost node, left of earlier jobs goes first.
set -uo pipefail

# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/../lib/log.sh"

# As Pyxis does: only Enroot's own configuration says where containers are.
unset ENROOT_DATA_PATH ENROOT_RUNTIME_PATH ENROOT_CACHE_PATH ENROOT_TEMP_PATH ENROOT_LIBRARY_PATH ENROOT_SYSCONF_PATH

# Pyxis puts pyxis_ before a name, and pyxis_<job>_ with container_scope=job. Of the same user's runs, and of no other.
list() {
    enroot list 2>/dev/null | grep -E '^pyxis_([0-9]+_)?kit-[0-9]+-[0-9]+-'
}

remove() {
    log::info "removes container $1"
    enroot remove --force "$1" </dev/null
}

# Containers of jobs that are gone, and of earlier starts of this one. Without its own job among the active ones squeue did not answer.
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
    local name ended=""
    trap 'ended=1' TERM INT HUP
    trap '' USR1 USR2
    remove_stale "$@"
    while [[ -z "${ended}" ]]; do
        sleep infinity &
        wait "$!"
    done
    # Ranks save what they have to, from the files that are to be removed.
    while ranks_here; do
        sleep 0.2
    done
    # Again when a step that was still unpacking has got in between.
    while name="$(list | grep -m 1 -F -- "${prefix}-")"; do
        remove "${name}"
        sleep 0.1
    done
}

main "$@"
