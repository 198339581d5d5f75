# The job's program, its arguments and its environment, unchanged to the byte. Read by worker.sh and rank.sh.
# shellcheck shell=bash disable=SC2034,SC2054
KIT_PROGRAM=(
    python3
    -m
    prime_rl.trainer.sft.train
)
KIT_PROGRAM_ENV=(
    NCCL_IB_DISABLE=0
    NCCL_NET_GDR_LEVEL=PHB
    NCCL_DEBUG=WARN
    KIT_DEVICE=cuda
    TORCH_NCCL_ASYNC_ERROR_HANDLING=1
)
