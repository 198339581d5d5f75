# The job's program, its arguments and its environment, unchanged to the byte. Read by worker.sh and rank.sh.
# shellcheck shell=bash disable=SC2034,SC2054
KIT_PROGRAM=(
    python3
    -m
    torchtitan.train
)
KIT_PROGRAM_ENV=(
    FI_PROVIDER=efa
    FI_EFA_USE_DEVICE_RDMA=1
    FI_EFA_FORK_SAFE=1
    NCCL_IB_DISABLE=1
    NCCL_DEBUG=WARN
    KIT_DEVICE=cuda
    TORCH_NCCL_ASYNC_ERROR_HANDLING=1
)
