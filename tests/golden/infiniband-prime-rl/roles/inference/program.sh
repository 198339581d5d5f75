# The job's program, its arguments and its environment, unchanged to the byte. Read by worker.sh and rank.sh.
# shellcheck shell=bash disable=SC2034,SC2054
KIT_PROGRAM=(
    /shared/runs/digits-1/code/lib/prime-rl/inference.sh
    python3
    /shared/runs/digits-1/configs/inference.toml
    4
    2
)
KIT_PROGRAM_ENV=(
    NCCL_IB_DISABLE=0
    NCCL_NET_GDR_LEVEL=PHB
    NCCL_DEBUG=WARN
    KIT_DEVICE=cuda
    KIT_CHECKPOINT_EVERY=10
    TORCH_NCCL_ASYNC_ERROR_HANDLING=1
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False
    CUDA_DEVICE_ORDER=PCI_BUS_ID
    VLLM_WORKER_MULTIPROC_METHOD=spawn
    HF_HUB_OFFLINE=1
    HF_DATASETS_OFFLINE=1
    TRANSFORMERS_OFFLINE=1
)
