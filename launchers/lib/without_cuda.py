"""Lets megatron.core, which expects CUDA, run on CPUs: for trying a layout on a laptop, and for tests.

Within `pretended()`, tensors for "cuda" are made on the CPU, `.cuda()` does nothing, and tensor types have their CUDA names,
because megatron's optimizer accepts no others. The few functions of torch.cuda that megatron calls are replaced.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode


class CudaMeansCpu(TorchFunctionMode):
    """Within it, tensors for "cuda" are made on the CPU, and the names of tensor types are those of CUDA."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if function is torch.Tensor.cuda:
            return args[0]
        result = function(*args, **kwargs)
        if function is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")
        return result


@contextmanager
def pretended() -> Iterator[None]:
    """Replace CUDA by the CPU, for the calls that megatron.core 0.16 makes."""
    stand_ins = {
        "current_device": lambda: torch.device("cpu"),
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "manual_seed": lambda _: None,
        "get_rng_state": lambda *_: torch.get_rng_state(),
    }
    with mock.patch.multiple(torch.cuda, **stand_ins), CudaMeansCpu():
        yield
