# The job's program, its arguments and its environment, unchanged to the byte. Read by worker.sh and rank.sh.
# shellcheck shell=bash disable=SC2034,SC2054
KIT_PROGRAM=(
    python3
    /shared/runs/digits-1/code/lib/prime-rl/environments.py
    /shared/runs/digits-1/configs/orchestrator.toml
    /shared/runs/digits-1/configs/environments
)
KIT_PROGRAM_ENV=(
    NCCL_IB_DISABLE=0
    NCCL_NET_GDR_LEVEL=PHB
    NCCL_DEBUG=WARN
    KIT_DEVICE=cuda
    KIT_CHECKPOINT_EVERY=10
    TORCH_NCCL_ASYNC_ERROR_HANDLING=1
    HF_HUB_OFFLINE=1
    HF_DATASETS_OFFLINE=1
    TRANSFORMERS_OFFLINE=1
)
