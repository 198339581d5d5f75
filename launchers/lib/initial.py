"""A model's first weights: the same in every layout, made with no more memory than a rank's part of the model takes.

A model is built on the meta device, where tensors have a shape and no memory. Then it is wrapped, and gets its memory and weights:

    with torch.device("meta"):
        net = model.GPT(shape)
    fully_shard(...)
    net.to_empty(device=world.device)
    initial.fill(net, net.std, seed=args.seed)

A matrix is drawn in bands of rows, each from its own seed. So a rank draws only the bands that hold its rows.
"""

import hashlib
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

BAND = 256  # rows
Std = Callable[[str], float]


@torch.no_grad()
def fill(net: nn.Module, std: Std, *, seed: int) -> None:
    """Set all parameters of a model to their first values. std: from a matrix's name to its standard deviation."""
    for name, mine, first, rows in shards(net):
        values(mine, name, first=first, rows=rows, std=std(name), seed=seed)


def shards(net: nn.Module) -> Iterator[tuple[str, torch.Tensor, int, int]]:
    """For each parameter: its name, this rank's rows, the number of the first of these rows, and the number of all rows."""
    for name, parameter in net.named_parameters():
        if isinstance(parameter, DTensor):
            mesh, placements = parameter.device_mesh, parameter.placements
            _, offsets = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
            yield name, parameter.to_local(), offsets[0], len(parameter)
        else:
            yield name, parameter, 0, len(parameter)


def values(mine: torch.Tensor, name: str, *, first: int, rows: int, std: float, seed: int) -> None:
    """Fill this rank's rows of a parameter: norms with 1, biases with 0, matrices with random values.

    first: the number of its first row. rows: the number of rows of the whole parameter. The values do not depend on the sharding.
    """
    if mine.dim() == 1:
        mine.fill_(0.0 if name.endswith("bias") else 1.0)
        return
    last = first + len(mine)
    for start in range(first // BAND * BAND, last, BAND):
        band = torch.empty(min(BAND, rows - start), *mine.shape[1:])
        band.normal_(std=std, generator=torch.Generator().manual_seed(_seed(seed, name, start)))
        low, high = max(first, start), min(last, start + BAND)
        mine[low - first : high - first] = band[low - start : high - start]


def _seed(seed: int, name: str, start: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {name} {start}".encode()).digest()[:8], "big") >> 1
