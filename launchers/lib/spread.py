"""Spreads a model over the ranks: a copy on each (DDP), or shards (FSDP2). Any layout reads the checkpoints, which are whole."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from . import whole_file
from .model import GPT
from .policy import Weights
from .ranks import Ranks

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


class _Copies(DistributedDataParallel):
    """DDP that multiplies matrices in `half`, if it is set. Parameters, gradients and updates stay float32."""

    half: torch.dtype | None = None

    def forward(self, tokens: torch.Tensor, documents: torch.Tensor | None = None) -> Any:
        with torch.autocast(tokens.device.type, dtype=self.half, enabled=self.half is not None):
            return super().forward(tokens, documents=documents)


def over(world: Ranks, net: GPT, args: argparse.Namespace) -> nn.Module:
    """The module to call instead of `net`. --dp-replicate copies: 0 puts one on each rank (DDP); else each is sharded over its
    ranks (FSDP2).

    --precision is that of products of matrices, and of the weights that FSDP2 gathers. Gradients are summed over the ranks in
    float32.
    """
    net.recompute = args.recompute
    if args.compile:
        # Block by block, so that DDP or FSDP2 can communicate for one block while another is computed.
        net.compile_blocks()
    half = {"fp32": None, "bf16": torch.bfloat16}[args.precision]
    copies = args.dp_replicate or world.ddp_world_size
    if world.ddp_world_size % copies:
        raise SystemExit(f"--dp-replicate {copies} does not divide {world.ddp_world_size} ranks.")
    if copies == world.ddp_world_size:
        ddp = _Copies(net)
        ddp.half = half
        # One backward pass whose gradients are dropped. DDP orders its buckets after the first pass, and the order of sums
        # depends on the buckets. So a resumed run has the buckets of an uninterrupted one.
        tokens = torch.zeros((1, 2), dtype=torch.long, device=world.device)  # (B, T)
        ddp(tokens).sum().backward()
        net.zero_grad(set_to_none=True)
        return ddp
    size = (copies, world.ddp_world_size // copies)
    mesh = init_device_mesh(world.device.type, size, mesh_dim_names=("replicate", "shard"))
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    for part in (*net.blocks, net):
        fully_shard(part, mesh=mesh if copies > 1 else mesh["shard"], mp_policy=policy)
    return net


@contextlib.contextmanager
def summing(forward: nn.Module, *, last: bool) -> Iterator[None]:
    """Forward and backward pass of one of a step's micro-batches. Only in the last one the ranks exchange gradients.

    Before it they add up on each rank. forward: of over().
    """
    if isinstance(forward, FSDPModule):
        forward.set_requires_gradient_sync(last)
        yield
    else:
        with contextlib.nullcontext() if last else forward.no_sync():
            yield


def number(norm: torch.Tensor) -> float:
    """A gradient norm as a float, over all shards. Called by all ranks."""
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def state(net: GPT, optimizer: torch.optim.Optimizer, world: Ranks) -> Any:
    """This rank's part of the weights and the optimizer state: its shards, and on rank 0 all that is not sharded."""
    weights, updates = get_state_dict(net, optimizer)
    made = {"model": weights, "optimizer": updates}
    return made if world.is_main_process else _shards(made)


def whole(saved: Any, world: Ranks, group: dist.ProcessGroup) -> Any:
    """On rank 0 the whole state in host memory, of what state() returned on each rank. Called by all ranks of the group."""
    if isinstance(saved, DTensor):
        return _gathered(saved, world, group)
    return {key: whole(one, world, group) for key, one in saved.items()} if isinstance(saved, dict) else saved


def restore(net: GPT, optimizer: torch.optim.Optimizer, found: Path, world: Ranks) -> dict[str, Any]:
    """Load what whole() returned from a checkpoint's state.pt. Returns all that the file holds. Called by all ranks."""
    # Each rank copies its shards out of the whole state.
    saved: dict[str, Any] = whole_file.load(found / "state.pt", world)
    set_state_dict(net, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"], options=FULL)
    return saved


def _shards(value: Any) -> Any:
    if not isinstance(value, dict):
        return value if isinstance(value, DTensor) else None
    return {key: one for key, part in value.items() if (one := _shards(part)) is not None}


def _gathered(sharded: DTensor, world: Ranks, group: dist.ProcessGroup) -> torch.Tensor | None:
    """The whole tensor on rank 0; None on the others. Shards are of rows (FSDP2); the first copy of the model sends its own."""
    owners = sharded.device_mesh.mesh.reshape(-1, sharded.device_mesh.size(-1))[0].tolist()
    mine = sharded.to_local()
    if not world.is_main_process:
        if world.ddp_rank in owners and mine.numel():
            dist.send(mine.contiguous(), 0, group=group)
        return None
    made = torch.empty(sharded.shape, dtype=sharded.dtype)
    for owner, part in zip(owners, made.chunk(len(owners)), strict=False):  # fewer parts than ranks where rows are few
        if owner == 0:
            part.copy_(mine)
        elif part.numel():
            dist.recv(part, owner, group=group)
    return made


def weights(net: GPT) -> Weights:
    """The whole weights, in rank 0's host memory. Called by all ranks."""
    return get_model_state_dict(net, options=FULL)
