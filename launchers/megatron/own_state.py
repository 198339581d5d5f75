"""Takes and restores a rank's own state, for checkpoints in memory: the layout stays the same, so each rank needs its bytes alone.

The parameters of the inner optimizers are this rank's: the model's own in fp32, float32 copies of them in bf16, and shards of
either with the distributed optimizer. All are filled in place, because Megatron's buffers refer to them.
"""

from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer


def taken(net: DistributedDataParallel, optimizer: MegatronOptimizer) -> dict[str, Any]:
    """Weights, and for each parameter group of the optimizers: its numbers, parameters, and moments."""
    groups = []
    for inner in _inner(optimizer):
        for group in inner.param_groups:
            numbers = {name: value for name, value in group.items() if name != "params"}
            states = [dict(inner.state.get(one, {})) for one in group["params"]]
            groups.append({"numbers": numbers, "params": list(group["params"]), "states": states})
    return {"model": net.module.state_dict(), "groups": groups}


@torch.no_grad()
def put(stored: dict[str, Any], net: DistributedDataParallel, optimizer: MegatronOptimizer) -> None:
    """Fill in what `taken` returned in a process of the same rank."""
    net.module.load_state_dict(stored["model"])
    groups = iter(stored["groups"])
    for inner in _inner(optimizer):
        for group, kept in zip(inner.param_groups, groups, strict=False):
            group.update(kept["numbers"])
            for one, value, state in zip(group["params"], kept["params"], kept["states"], strict=True):
                one.copy_(value)
                inner.state[one] = {name: _placed(moment, one) for name, moment in state.items()}


def _inner(optimizer: MegatronOptimizer) -> list[torch.optim.Optimizer]:
    return [one.optimizer for one in getattr(optimizer, "chained_optimizers", [optimizer])]


def _placed(moment: Any, one: torch.Tensor) -> Any:
    """A moment on its parameter's device. A step count stays in host memory; each parameter has its own."""
    if not isinstance(moment, torch.Tensor):
        return moment
    return moment.to(one.device, copy=True) if moment.shape == one.shape else moment.clone()
