# The job's program, its arguments and its environment, unchanged to the byte. Read by worker.sh and rank.sh.
# shellcheck shell=bash disable=SC2034,SC2054
KIT_PROGRAM=(
    /shared/runs/digits-1/code/lib/prime-rl/trainer.sh
    /shared/runs/digits-1/configs/trainer.toml
    nccl
    /shared/runs/digits-1/outputs
    /shared/runs/digits-1/outputs
)
KIT_PROGRAM_ENV=(
    NCCL_IB_DISABLE=0
    NCCL_NET_GDR_LEVEL=PHB
    NCCL_DEBUG=WARN
    KIT_DEVICE=cuda
    KIT_CHECKPOINT_EVERY=10
    TORCH_NCCL_ASYNC_ERROR_HANDLING=1
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
    CUDA_DEVICE_ORDER=PCI_BUS_ID
    HF_HUB_OFFLINE=1
    HF_DATASETS_OFFLINE=1
    TRANSFORMERS_OFFLINE=1
    WANDB_SHARED_MODE=1
    WANDB_SHARED_LABEL=trainer
)
