"""Run by a test on two ranks: Muon with its work shared, beside Muon on one rank. Prints the largest difference of each way."""

import json
from typing import Any

import muon
import torch
import torch.distributed as dist
from lib import ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

SHAPES = [(48, 32), (48, 32), (48, 32), (32, 32), (33, 32)]  # odd counts, and rows that two do not divide


def steps(parameters: list[nn.Parameter], group: Any, mesh: Any) -> list[torch.Tensor]:
    """Three steps with the same gradients on all ranks; the parameters, whole."""
    optimizer = muon.Muon(parameters, lr=0.1, weight_decay=0.1, group=group)
    draw = torch.Generator().manual_seed(1)
    for _ in range(3):
        for parameter in parameters:
            gradient = torch.randn(parameter.shape, generator=draw)
            parameter.grad = distribute_tensor(gradient, mesh, [Shard(0)]) if mesh else gradient
        optimizer.step()
    return [p.full_tensor() if mesh else p.detach().clone() for p in parameters]


def compare(world: ranks.Ranks) -> None:
    """Print the differences. What holds a process group ends with this function: torch 2.13 may abort a rank that keeps it."""
    made, calls = muon.orthogonal, [0]

    def counted(matrices: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return made(matrices)

    muon.orthogonal = counted
    draw = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=draw) for shape in SHAPES]
    alone = steps([nn.Parameter(one.clone()) for one in start], None, None)
    told: dict[str, Any] = {"calls": [*calls]}
    mesh = init_device_mesh("cpu", (world.ddp_world_size,))
    ways = {
        "ddp": ([nn.Parameter(one.clone()) for one in start], None),
        "fsdp": ([nn.Parameter(distribute_tensor(one.clone(), mesh, [Shard(0)])) for one in start], mesh),
    }
    for name, (parameters, its_mesh) in ways.items():
        before = calls[0]
        shared = steps(parameters, dist.group.WORLD, its_mesh)
        told[name] = max(float((mine - other).abs().max()) for mine, other in zip(alone, shared, strict=True))
        told["calls"].append(calls[0] - before)
    every: list[Any] = [None] * world.ddp_world_size
    dist.all_gather_object(every, told, group=world.control)
    if world.is_main_process:
        print(json.dumps(every))


with ranks.started("cpu") as of_all:
    compare(of_all)
    del of_all
