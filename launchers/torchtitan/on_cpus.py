"""Lets TorchTitan, which expects an accelerator, run on a machine that has none: to try a job before it gets GPUs, and for tests.

TorchTitan takes its device and its module of device functions from torch, and "cuda" where torch names none. `pretended()` makes
torch name the CPU, and adds the functions of torch.cuda that TorchTitan calls and torch.cpu does not have. Gloo then carries the
collectives; NCCL's options for them are left out. Read from v0.2.2.
"""

import functools
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch._utils
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule


def memory() -> int:
    """Bytes of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# What torch.cpu lacks. A machine has one CPU device, which keeps no figures of its memory.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "get_device_name": lambda *_: "CPU",
    "get_device_properties": lambda *_: SimpleNamespace(total_memory=memory()),
    "reset_peak_memory_stats": lambda *_: None,
    "empty_cache": lambda: None,
    "memory_stats": lambda *_: {},
}


def pretended() -> None:
    """Make the CPU torch's accelerator, for the rest of this process."""
    setattr(torch._utils, "_get_available_device_type", lambda: "cpu")  # noqa: B010 - private to torch
    for name, function in FUNCTIONS.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, function)
    # Each rank names its device cpu:<local rank>, and there is cpu:0 alone.
    os.environ["LOCAL_RANK"] = "0"
    _without_device_ids()
    _sums_alone()


def _without_device_ids() -> None:
    """Call barriers without the numbers of GPUs: a CPU has none."""
    barrier = dist.barrier

    @functools.wraps(barrier)
    def without(*args: Any, device_ids: Any = None, **options: Any) -> Any:
        return barrier(*args, **options)

    dist.barrier = without


def _sums_alone() -> None:
    """Let FSDP sum first and multiply by its factor then. Gloo cannot multiply while it sums."""
    divide = FSDPModule.set_gradient_divide_factor

    @functools.wraps(divide)
    def then_multiply(module: Any, factor: float) -> None:
        module.set_force_sum_reduction_for_comms(True)
        divide(module, factor)

    setattr(FSDPModule, "set_gradient_divide_factor", then_multiply)  # noqa: B010 - a method of torch's
