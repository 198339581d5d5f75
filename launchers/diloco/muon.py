"""Muon: momentum whose update is made orthogonal, for the weight matrices inside a transformer's blocks.

Source: Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks", kellerjordan.github.io/posts/muon
(2024): Nesterov momentum, five Newton-Schulz steps, their coefficients. The factor 0.2 sqrt(larger side), which gives
the update the size of AdamW's, so that both share one learning rate and weight decay: Liu et al., "Muon is scalable for
LLM training", arXiv 2502.16982, section 2.2. As the inner optimizer of DiLoCo: Therien et al., "MuLoCo", arXiv 2505.23725.

Muon takes the matrices of the blocks. Embedding, output layer and norms stay on AdamW: the first two are tables of rows
rather than maps between hidden states, and a vector has no singular values to even out.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from lib import loop
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

# Matrices that are several maps stacked by rows; each part is made orthogonal by itself (the Muon post does so for qkv).
STACKED = {"qkv.weight": 3, "gate_up.weight": 2}


def optimizers(net: nn.Module, kind: str, *, lr: float, weight_decay: float, beta2: float = 0.95) -> list[Optimizer]:
    """The inner optimizers of a GPT: AdamW for all of it, or Muon for the blocks' matrices and AdamW for the rest.

    beta2: how long AdamW remembers squared gradients, 1 / (1 - beta2) steps.
    """
    taken: dict[int, list[nn.Parameter]] = {}
    rest = []
    for name, parameter in net.named_parameters():
        if kind == "muon" and "blocks." in name and parameter.dim() == 2:
            parts = next((count for end, count in STACKED.items() if name.endswith(end)), 1)
            taken.setdefault(parts, []).append(parameter)
        else:
            rest.append(parameter)
    made: list[Optimizer] = [loop.adamw(rest, lr=lr, weight_decay=weight_decay, beta2=beta2)]
    if taken:
        groups = [{"params": parameters, "parts": parts} for parts, parameters in taken.items()]
        made.append(Muon(groups, lr=lr, weight_decay=weight_decay))
    return made


class Muon(Optimizer):
    """For matrices only. `parts` of a group: into how many blocks of rows its matrices fall."""

    def __init__(
        self, params: Iterable[Any], *, lr: float, momentum: float = 0.95, weight_decay: float = 0.1, parts: int = 1
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "parts": parts})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Update every matrix that has a gradient."""
        if closure is not None:
            raise ValueError("Muon takes no closure.")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum, grad = state["momentum"], parameter.grad
        momentum.lerp_(grad, 1 - group["momentum"])
        direction = grad.lerp(momentum, group["momentum"])  # Nesterov: one step of momentum ahead
        rows, columns = parameter.shape
        rows //= group["parts"]
        # A matrix in shards is put together for this: its singular values are those of the whole.
        whole = direction.full_tensor() if isinstance(direction, DTensor) else direction
        update = orthogonal(whole.reshape(group["parts"], rows, columns)).reshape(parameter.shape).to(parameter.dtype)
        if isinstance(parameter, DTensor):
            mesh = parameter.device_mesh
            update = DTensor.from_local(update, mesh, [Replicate()] * mesh.ndim).redistribute(
                mesh, parameter.placements
            )
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update, alpha=-group["lr"] * 0.2 * max(rows, columns) ** 0.5)


def orthogonal(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """[…, rows, columns] -> the same with all singular values near 1 (0.7 to 1.2), singular vectors kept.

    Newton-Schulz: x <- a x + b (x x') x + c (x x')^2 x maps each singular value s to a s + b s^3 + c s^5, which these
    coefficients drive to about 1 from anywhere in (0, 1]. In bfloat16 on a GPU, as in the source; float32 on a CPU.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT  # so that x x' is the smaller product
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x
