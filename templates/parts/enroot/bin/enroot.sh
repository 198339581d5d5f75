#!/bin/bash
# enroot.sh OPTION… IMAGE COMMAND…: `enroot start` for one task of a step, without Pyxis.
# Slurm signals every process of a step. Enroot's own processes must outlive a TERM so that the program can save. So all that is
# started from here ignores the signals, and unignore.sh gives the program its signals back. CONT, which cannot be ignored, makes
# Enroot end its FUSE daemons: lib/fuse_daemon.sh.
set -euo pipefail

# Enroot closes all files but standard input, output and error. So the file on which the ranks of `srun --mpi=pmi2` meet goes in as
# standard input, which is empty otherwise. worker.sh gives it a number of its own again.
if [[ -n "${PMI_FD:-}" ]]; then
    exec <&"${PMI_FD}"
    export KIT_PMI_IS_STDIN=1
fi

# Enroot passes on only variables that it is told. Slurm's and the kit's make the ranks; the devices come from Slurm's GRES plugin.
options=()
while IFS= read -r name; do
    case "${name}" in
        SLURM_* | SLURMD_* | KIT_* | PMIX_* | PMI_* | CUDA_VISIBLE_DEVICES | GPU_DEVICE_ORDINAL | ROCR_VISIBLE_DEVICES | ZE_AFFINITY_MASK)
            options+=(--env "${name}")
            ;;
    esac
done < <(compgen -e)

# Mount the folder that `srun --mpi=pmix` makes for the step's ranks.
if [[ -d "${PMIX_SERVER_TMPDIR:-}" ]]; then
    options+=("--mount=${PMIX_SERVER_TMPDIR%/}:${PMIX_SERVER_TMPDIR%/}:x-create=dir,rbind")
fi

trap '' TERM USR1 USR2 INT HUP
exec env BASH_ENV="${BASH_SOURCE[0]%/bin/*}/lib/fuse_path.sh" enroot start "${options[@]}" "$@"
