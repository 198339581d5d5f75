#!/bin/bash
# shellcheck source-path=SCRIPTDIR/..
# shell.sh [--tool NAME PORT] FOLDER ROLE-FOLDER: opens an interactive shell there, with what a rank has: the image's environment,
# the caches, the job's variables and its secrets. With --tool, it runs one of lib/tools.sh instead of the shell.
set -o pipefail # without -u: set-up lines of conda and of module read variables that are not set

tool=()
if [[ "$1" == --tool ]]; then
    tool=("$2" "$3")
    shift 3
fi
KIT_RUN_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
readonly KIT_RUN_DIR
source "${KIT_RUN_DIR}/lib/log.sh"
source "${KIT_RUN_DIR}/lib/cache_folders.sh"
source "${KIT_RUN_DIR}/lib/tools.sh"
# shellcheck source=/dev/null
source "${KIT_RUN_DIR}/${2:+$2/}image-env.sh"
KIT_RANK_ARGS=()
# shellcheck source=/dev/null
source "${KIT_RUN_DIR}/${2:+$2/}program.sh"

# Pyxis passes it on from the step, where it is for Enroot.
unset BASH_ENV
export KIT_RUN_DIR KIT_CHECKPOINT_DIR="${KIT_RUN_DIR}/checkpoints" KIT_RESTART_COUNT=0
export PYTHONPATH="${KIT_RUN_DIR}/code" PYTHONNOUSERSITE=1
# The shell is one task of its own, and what is typed there is a training of one rank. Slurm's numbers of the job would make a
# framework wait for the other ranks. By the name of the job, Lightning and others know that no step started them.
export SLURM_JOB_NAME=interactive SLURM_NTASKS=1 SLURM_NPROCS=1 SLURM_NTASKS_PER_NODE=1 SLURM_TASKS_PER_NODE=1 SLURM_NNODES=1
export RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 NODE_RANK=0 KIT_NNODES=1 KIT_RANKS_PER_NODE=1
export MASTER_ADDR=127.0.0.1 MASTER_PORT="$((20000 + ${SLURM_JOB_ID:-0} % 10000))"
cache_folders::point_at "${KIT_SHELL_CACHE:-/kit/cache}" "${KIT_IMAGE_SHORT}"
tools::home "${KIT_SHELL_CACHE:-/kit/cache}"
if [[ -r "${KIT_RUN_DIR}/.secrets" ]]; then
    # shellcheck source=/dev/null
    source "${KIT_RUN_DIR}/.secrets"
fi
if [[ -s "${KIT_RUN_DIR}/setup.sh" ]]; then
    source "${KIT_RUN_DIR}/lib/setup_lines.sh"
    setup_lines::run "${KIT_RUN_DIR}/setup.sh" || log::error "set-up ${setup_lines_said}"
fi
cd -- "$1" || exit
if ((${#tool[@]})); then
    tools::serve "${tool[@]}"
    exit
fi
for ((index = 0; index < ${#KIT_RANK_ARGS[@]}; index += 2)); do
    KIT_PROGRAM+=("${KIT_RANK_ARGS[index]}" "${!KIT_RANK_ARGS[index + 1]}")
done
log::info "shell in the job's container; the program, as one rank, would be: ${KIT_PROGRAM[*]@Q}"
env -- "${KIT_PROGRAM_ENV[@]}" bash --norc -i
code=$?
# Pyxis and Enroot leave a stopped process in this task's group, to hold the container's FUSE daemons. On its own terminal the group
# gets no hang-up from the kernel when the task ends. Without cgroups these processes would stay forever.
trap '' HUP
kill -HUP 0
kill -CONT 0
exit "${code}"
