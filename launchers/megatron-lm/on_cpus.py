"""Lets Megatron-LM, which requires CUDA, run where torch has none: to try a job before it gets GPUs, and for tests.

This is a pretence, not a port. Megatron-LM asks torch.cuda for devices, streams and random numbers, and the CPU answers. The
arithmetic is torch's own on the CPU, and gloo carries the collectives. Nothing here says how fast a job is on GPUs, or how much of
their memory it needs. docs/guides/launchers.md says what runs and what does not. Read from core_v0.16.1.
"""

import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lib.without_cuda import CudaMeansCpu
from torch import _dynamo

CPU = torch.device("cpu")
HOPPER = (9, 0)

# Parts that need no CUDA kernel, instead of Megatron-LM's defaults. The job's own options come later, so they win.
OPTIONS = (
    *("--distributed-backend", "gloo"),
    *("--transformer-impl", "local"),
    "--no-masked-softmax-fusion",
    "--no-gradient-accumulation-fusion",
    "--no-persist-layer-norm",
    "--no-rope-fusion",
)

# What Megatron-LM calls in torch.cuda, and what answers instead. torch.cpu's streams do nothing: a CPU runs everything in order.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "is_available": lambda: True,  # it ends at once without CUDA
    "device_count": lambda: 1,  # it makes its process groups only where there are devices
    "current_device": lambda: CPU,  # it passes this on as the device of new tensors
    "set_device": lambda *_: None,
    "synchronize": lambda *_: None,
    "empty_cache": lambda: None,
    "Stream": torch.cpu.Stream,
    "stream": torch.cpu.stream,
    "current_stream": torch.cpu.current_stream,
    "default_stream": torch.cpu.current_stream,
    # Its rules about a GPU's generation then permit what they permit on today's GPUs.
    "get_device_properties": lambda *_: SimpleNamespace(name="CPU", major=HOPPER[0], minor=HOPPER[1]),
    "get_device_capability": lambda *_: HOPPER,
    # Dropout on the CPU draws from torch's one generator, so this is the generator that ranks must seed, keep and restore.
    "manual_seed": torch.default_generator.manual_seed,
    "manual_seed_all": torch.default_generator.manual_seed,
    "get_rng_state": lambda *_, **__: torch.default_generator.get_state(),
    "set_rng_state": lambda state, *_, **__: torch.default_generator.set_state(state),
    # torch.cuda keeps calls until CUDA has started, which never happens here.
    "_lazy_init": lambda: None,
    "_lazy_call": lambda call, **_: call(),
}


def pretended() -> None:
    """Make the CPU answer for CUDA, for the rest of this process. The checkout of Megatron-LM must be on sys.path."""
    for name, function in FUNCTIONS.items():
        for module in (torch.cuda, torch.cuda.random):
            if hasattr(module, name):
                setattr(module, name, function)
    setattr(torch.cuda, "default_generators", {CPU: torch.default_generator})  # noqa: B010 - another type
    CudaMeansCpu().__enter__()
    # torch.compile would run a C++ compiler, which images seldom have. The small functions then run as they are written.
    _dynamo.config.disable = True
    # It warns at every dropout that the CPU's generator has moved. Here it is the right one.
    logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)
    _without_compilers()


def _without_compilers() -> None:
    """Leave out the CUDA kernels, and take the data indexer of the installed megatron-core instead of compiling it with make."""
    # Their builder asks nvcc for its version. Without masked_softmax_fusion no kernel of them is used. Later releases have none.
    if importlib.util.find_spec("megatron.legacy") is not None:
        importlib.import_module("megatron.legacy.fused_kernels").load = lambda _: None  # type: ignore[attr-defined]
    places = [str(Path(place) / "megatron" / "core" / "datasets") for place in sys.path]
    compiled = PathFinder.find_spec("helpers_cpp", places)
    if compiled is None or compiled.origin is None:
        return  # rank 0 compiles it in the checkout
    importlib.import_module("megatron.core.datasets").__path__.append(str(Path(compiled.origin).parent))
    importlib.import_module("megatron.core.datasets.utils").compile_helpers = lambda: None  # type: ignore[attr-defined]
