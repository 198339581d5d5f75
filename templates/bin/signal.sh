#!/bin/bash
# signal.sh NAME: one task per node, outside the container: sends a signal to the ranks of this job on this node, and to nothing else.
# Services get none: they are there until the others have saved.
# Slurm's own signals go to every process of a step. FUSE daemons of Pyxis and Enroot, which the ranks' files come from, die of them, and
# torchrun dies of USR1: the ranks would be gone before they had saved.
set -uo pipefail

main() {
    local path pid
    # A rank is known by its environment, which nobody but its user can read.
    while IFS= read -r path; do
        pid="${path#/proc/}"
        pid="${pid%/environ}"
        if grep -qz '^RANK=' "${path}" 2>/dev/null && ! grep -qz '^KIT_SERVICE=1$' "${path}" 2>/dev/null; then
            kill -s "$1" "${pid}" 2>/dev/null
        fi
    done < <(grep -lzxF -- "SLURM_JOB_ID=${SLURM_JOB_ID}" /proc/[0-9]*/environ 2>/dev/null)
    return 0
}

main "$@"
