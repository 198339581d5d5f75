"""Muon: momentum with an orthogonal update, for the weight matrices inside a transformer's blocks.

Sources: Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks", kellerjordan.github.io/posts/muon
(2024), for Nesterov momentum, the five Newton-Schulz steps and their coefficients. Liu et al., "Muon is scalable for LLM
training", arXiv 2502.16982, section 2.2, for the factor 0.2 sqrt(larger side): it gives the update the size of AdamW's, so
that both share one learning rate and weight decay. Therien et al., "MuLoCo", arXiv 2505.23725, for Muon as the inner
optimizer of DiLoCo.

Muon takes the matrices of the blocks. Embedding, output layer and norms stay on AdamW: the first two are tables of rows and
not maps between hidden states, and a vector has no singular values to equalize.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from lib import loop
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

Made = Callable[[torch.Tensor], torch.Tensor]


def optimizers(
    net: nn.Module,
    kind: str,
    *,
    lr: float,
    weight_decay: float,
    beta2: float = 0.95,
    group: dist.ProcessGroup | None = None,
) -> list[Optimizer]:
    """The inner optimizers of a GPT: AdamW for all parameters, or Muon for the blocks' matrices and AdamW for the rest.

    beta2: AdamW averages squared gradients over about 1 / (1 - beta2) steps. group: the ranks that share Muon's work.
    """
    taken: dict[tuple[int, ...], list[nn.Parameter]] = {}  # stacked maps -> matrices; each is a parameter group of Muon
    rest = []  # for AdamW: embedding, output layer, norms and biases
    for name, parameter in net.named_parameters():
        if kind == "muon" and "blocks." in name and parameter.dim() == 2:
            taken.setdefault(stacked(net, name), []).append(parameter)
        else:
            rest.append(parameter)
    made: list[Optimizer] = [loop.adamw(rest, lr=lr, weight_decay=weight_decay, beta2=beta2)]
    if taken:
        groups = [{"params": parameters, "parts": parts} for parts, parameters in taken.items()]
        made.append(Muon(groups, lr=lr, weight_decay=weight_decay, group=group))
    return made


def stacked(net: nn.Module, name: str) -> tuple[int, ...]:
    """The shares of the maps that a block's matrix stacks by rows. Each is made orthogonal separately, as in the Muon post."""
    if name.endswith("qkv.weight"):
        # With grouped queries (`--init-from`) a block has fewer heads of keys and of values than of queries.
        block: Any = net.get_submodule(name.removesuffix(".qkv.weight"))
        return (block.heads, block.keys, block.keys)
    return (1, 1) if name.endswith("gate_up.weight") else (1,)


class Muon(Optimizer):
    """Updates matrices only. `parts` of a parameter group: the shares of the row blocks in each of its matrices.

    group: the ranks that share the work, each with whole matrices (DDP) or with rows of them (FSDP); None: this rank alone.
    One rank does Newton-Schulz for each matrix. A round handles as many matrices of one shape as there are ranks.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        parts: Sequence[int] = (1,),
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "parts": parts})
        self._ranks = group

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Update every matrix that has a gradient. Called by all ranks of the group."""
        if closure is not None:
            raise ValueError("Muon takes no closure.")
        for group in self.param_groups:
            # A round needs one shape: the collectives below send equal sizes. All ranks see the parameters in the same order, so
            # their rounds are the same.
            by_shape: dict[torch.Size, list[torch.Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            count = 1 if self._ranks is None else self._ranks.size()  # matrices of a round
            for parameters in by_shape.values():
                for first in range(0, len(parameters), count):
                    self._round(parameters[first : first + count], group)

    def _round(self, parameters: list[torch.Tensor], group: dict[str, Any]) -> None:
        """Update matrices of one shape: at most as many as there are ranks."""
        # Each (rows, columns); with FSDP this rank's rows of it. DDP or FSDP has averaged the gradients over the ranks.
        directions = [self._direction(parameter, group["momentum"]) for parameter in parameters]
        rows, columns = parameters[0].shape  # of the whole matrix: a DTensor's shape is the global one
        heights = [rows * part // sum(group["parts"]) for part in group["parts"]]  # rows of each block
        # The elements of an orthogonal matrix have the root mean square 1 / sqrt(larger side); with this factor, 0.2.
        factors = [0.2 * max(height, columns) ** 0.5 for height in heights]

        def made(whole: torch.Tensor) -> torch.Tensor:
            if len({*heights}) == 1:
                # (rows, columns) -> (blocks, rows / blocks, columns): orthogonal() takes the first dimension as a batch.
                return orthogonal(whole.reshape(len(heights), -1, columns)).reshape(rows, columns)
            # The first block's factor is applied below, to all rows.
            blocks = zip(whole.split(heights), factors, strict=True)
            return torch.cat([orthogonal(block) * (factor / factors[0]) for block, factor in blocks])

        if self._ranks is None:
            updates = [made(direction) for direction in directions]
        elif isinstance(parameters[0], DTensor):
            updates = _by_rows(directions, rows, self._ranks, made)
        else:
            updates = _by_matrix(directions, self._ranks, made)
        for parameter, update in zip(parameters, updates, strict=True):
            # to_local() shares the shard's memory: a change of `mine` changes the parameter.
            mine = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            # Decoupled weight decay, as in AdamW (Loshchilov and Hutter, arXiv 1711.05101): it is not part of the direction.
            mine.mul_(1 - group["lr"] * group["weight_decay"])
            mine.add_(update.to(mine.dtype), alpha=-group["lr"] * factors[0])

    def _direction(self, parameter: torch.Tensor, momentum: float) -> torch.Tensor:
        """The direction of the momentum one step ahead (Nesterov): of the whole matrix, or of this rank's rows."""
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        # The post has m <- momentum * m + g and g + momentum * m. These two lines are (1 - momentum) times that, which changes
        # nothing: orthogonal() divides by the norm.
        state["momentum"].lerp_(parameter.grad, 1 - momentum)
        direction = parameter.grad.lerp(state["momentum"], momentum)
        return direction.to_local() if isinstance(direction, DTensor) else direction


def _by_matrix(directions: list[torch.Tensor], ranks: dist.ProcessGroup, made: Made) -> list[torch.Tensor]:
    """The updates of matrices that all ranks hold whole: rank i makes the i-th, and all ranks get all."""
    # The last round of a shape may have fewer matrices than ranks. The other ranks send zeros: all must take part.
    mine = made(directions[ranks.rank()]) if ranks.rank() < len(directions) else None
    kind = orthogonal_type(directions[0])
    rows, columns = directions[0].shape
    every = torch.empty((ranks.size() * rows, columns), dtype=kind, device=directions[0].device)
    sent = torch.zeros_like(every[:rows]) if mine is None else mine.contiguous()
    # (rows, columns) of each rank -> (ranks * rows, columns). The update, not the direction, is sent: it is in bfloat16 on
    # a GPU, half the bytes.
    dist.all_gather_into_tensor(every, sent, group=ranks)
    return list(every.split(rows)[: len(directions)])  # (rows, columns) each; the zeros behind them are left out


def _by_rows(directions: list[torch.Tensor], rows: int, ranks: dist.ProcessGroup, made: Made) -> list[torch.Tensor]:
    """This rank's rows of the updates, where each rank holds rows of each matrix. Rank i gathers and makes the i-th."""
    columns = directions[0].shape[1]  # each direction is (this rank's rows, columns)
    each = -(-rows // ranks.size())  # as FSDP shards: equal parts, the last ones shorter or empty
    # Rows of a matrix on each rank.
    parts = [max(0, min(each, rows - each * rank)) for rank in range(ranks.size())]
    has_one = ranks.rank() < len(directions)
    # Numbers to send to each rank, and to receive from each: rank i gets its matrix i from all, and gives each its rows
    # back.
    out = [directions[0].numel() if rank < len(directions) else 0 for rank in range(ranks.size())]
    back = [part * columns if has_one else 0 for part in parts]
    # (rows * columns,) on a rank that makes a matrix, else (0,). Rank after rank sends its rows, so they arrive in order.
    whole = torch.empty(sum(back), dtype=directions[0].dtype, device=directions[0].device)
    # All-to-all and not all-gather: each rank needs one whole matrix, not all of them.
    dist.all_to_all_single(whole, torch.cat([one.flatten() for one in directions]), back, out, group=ranks)
    update = made(whole.view(rows, columns)) if has_one else whole
    kind = orthogonal_type(directions[0])
    # The way back: what a rank sent it now receives, so `out` and `back` change places. Afterwards `mine` has this rank's
    # rows of update 0, then of update 1, and so on.
    mine = torch.empty(sum(out), dtype=kind, device=whole.device)
    dist.all_to_all_single(mine, update.to(kind).flatten().contiguous(), out, back, group=ranks)
    return list(mine.view(len(directions), -1, columns))  # (matrices, this rank's rows, columns), as a list


def orthogonal_type(matrix: torch.Tensor) -> torch.dtype:
    """The type that orthogonal() computes in: bfloat16 on a GPU, as in the source; float32 on a CPU."""
    return torch.bfloat16 if matrix.is_cuda else torch.float32


def orthogonal(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """[…, rows, columns] -> the same singular vectors, with singular values near 1 (0.7 to 1.2, except values that are nearly 0).

    Newton-Schulz: x <- a x + b (x x') x + c (x x')^2 x maps each singular value s to a s + b s^3 + c s^5. These
    coefficients drive s to about 1 from anywhere in (0, 1]. Computed in orthogonal_type().
    """
    # These three do not converge to 1 exactly, but reach its neighbourhood in five steps.
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.to(orthogonal_type(matrices))
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT  # so that x x' is the smaller product
    # The Frobenius norm is at least the largest singular value, so all are in (0, 1]. 1e-7 avoids a division by zero.
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT  # (…, n, n), where n is the smaller side
        x = a * x + (b * square + c * square @ square) @ x  # keeps its shape, (…, n, larger side)
    return x.mT if tall else x
