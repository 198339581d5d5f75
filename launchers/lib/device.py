"""Device of a program. In a job with GPUs, `--device auto` does not fall back to the CPU: the run would be far slower."""

import ctypes
import os
from pathlib import Path

import torch


def use_gpu(device: str) -> bool:
    """Whether to compute on a GPU. device: auto, cpu or cuda. SystemExit where a GPU is asked for and not found.

    auto: cuda where there is a GPU, and in a job that has GPUs, for which the kit sets KIT_DEVICE=cuda.
    """
    asked = os.environ.get("KIT_DEVICE", "auto") if device == "auto" else device
    if asked == "cpu":
        return False
    if torch.cuda.is_available():
        return True
    if asked == "cuda":
        whose = "--device cuda" if device == "cuda" else "this job has GPUs"
        problem, hint = missing()
        raise SystemExit(f"{whose}, and torch finds none: {problem}\n  try: {hint}; or --device cpu")
    return False


def missing() -> tuple[str, str]:
    """What keeps torch from a GPU, and what to try. The first that applies, in the order in which a GPU is found."""
    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} is a build for CPUs", "an image whose torch is built for CUDA"
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return "CUDA_VISIBLE_DEVICES is empty, so this process may use no GPU", "gpus_per_node under [resources]"
    if torch.version.cuda and not Path("/dev/nvidiactl").exists():
        return "/dev/nvidiactl is not there, so this node or container has no NVIDIA GPU", "nvidia-smi on the node"
    if torch.version.cuda and not _loads("libcuda.so.1"):
        return (
            "the driver's library libcuda.so.1 is not there",
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility in the image",
        )
    try:
        torch.cuda.init()
    except RuntimeError as error:  # such as a driver that is older than the build
        return (
            f"torch {torch.__version__}: {str(error).splitlines()[0]}",
            "an image whose CUDA is that of the driver, or older",
        )
    return f"torch {torch.__version__} counts {torch.cuda.device_count()} GPUs", "nvidia-smi on the node"


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
