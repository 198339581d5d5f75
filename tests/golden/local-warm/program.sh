# The job's program, its arguments and its environment, unchanged to the byte. Read by worker.sh and rank.sh.
# shellcheck shell=bash disable=SC2034,SC2054
KIT_PROGRAM=(
    python3
    /kit/run/code/train.py
    --epochs
    12
)
KIT_PROGRAM_ENV=(
    KIT_CHECKPOINT_MEMORY_EVERY=10
    TORCH_NCCL_ASYNC_ERROR_HANDLING=1
    OMP_NUM_THREADS=1
)
# Modules that one process of each node imports, from which its ranks are forked.
KIT_WARM=(
    torch
    torch.distributed
)
# Steps are kept in the memory of the nodes.
KIT_MEMORY=1
