# shellcheck shell=bash
# Finds the processes of this node's ranks, by their environment. Only their user can read it, and a lock of the kernel may delay it.

# rank_processes::find: adds to the caller's processes, by ROLE@RANK, their numbers, oldest first. Returns 1 where there are none.
rank_processes::find() {
    local path word role rank
    local -a found words
    mapfile -t found < <(timeout 10 grep -lzxF -- "SLURM_JOB_ID=${SLURM_JOB_ID}" /proc/[0-9]*/environ 2>/dev/null)
    ((${#found[@]})) || return 1
    mapfile -t found < <(timeout 10 grep -lz '^KIT_RANK_SHELL=' "${found[@]}" 2>/dev/null | sort --version-sort)
    for path in "${found[@]}"; do
        role="" rank=""
        mapfile -d '' -t words 2>/dev/null <"${path}" || continue
        for word in "${words[@]}"; do
            case "${word}" in
                KIT_ROLE=*) role="${word#*=}" ;;
                RANK=*) rank="${word#*=}" ;;
            esac
        done
        path="${path%/environ}"
        [[ ! "${role}@${rank}" =~ ^[A-Za-z0-9_.-]*@[0-9]{1,9}$ ]] || processes["${role}@${rank}"]+="${path#/proc/} "
    done
    ((${#processes[@]}))
}
