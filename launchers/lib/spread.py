"""Spreads a model over the ranks: a copy on each (DDP), or shards (FSDP2). Any layout reads the checkpoints, which are whole."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from .model import GPT
from .policy import Weights
from .ranks import Ranks

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


def over(world: Ranks, net: GPT, copies: int) -> nn.Module:
    """The module to call instead of `net`. copies: 0 puts one on each rank (DDP); else each is sharded over its ranks (FSDP2)."""
    copies = copies or world.ddp_world_size
    if world.ddp_world_size % copies:
        raise SystemExit(f"--dp-replicate {copies} does not divide {world.ddp_world_size} ranks.")
    if copies == world.ddp_world_size:
        ddp = DistributedDataParallel(net)
        # One backward pass whose gradients are dropped. DDP orders its buckets after the first pass, and the order of sums
        # depends on the buckets. So a resumed run has the buckets of an uninterrupted one.
        tokens = torch.zeros((1, 2), dtype=torch.long, device=world.device)  # (B, T)
        ddp(tokens).sum().backward()
        net.zero_grad(set_to_none=True)
        return ddp
    size = (copies, world.ddp_world_size // copies)
    mesh = init_device_mesh(world.device.type, size, mesh_dim_names=("replicate", "shard"))
    for part in (*net.blocks, net):
        fully_shard(part, mesh=mesh if copies > 1 else mesh["shard"])
    return net


def number(norm: torch.Tensor) -> float:
    """A gradient norm as a float, over all shards. Called by all ranks."""
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def state(net: GPT, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """The whole weights and optimizer state, in rank 0's host memory. Called by all ranks."""
    weights, updates = get_state_dict(net, optimizer, options=FULL)
    return {"model": weights, "optimizer": updates}


def restore(net: GPT, optimizer: torch.optim.Optimizer, found: Path) -> dict[str, Any]:
    """Load what `state` returned from a checkpoint's state.pt. Returns all that the file holds. Called by all ranks."""
    saved: dict[str, Any] = torch.load(found / "state.pt", map_location="cpu", weights_only=True)
    set_state_dict(net, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"], options=FULL)
    return saved


def weights(net: GPT) -> Weights:
    """The whole weights, in rank 0's host memory. Called by all ranks."""
    return get_model_state_dict(net, options=FULL)
