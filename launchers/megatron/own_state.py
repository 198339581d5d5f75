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
    # No collective, and no copy: these are the tensors themselves. The store of checkpoints in memory copies them.
    groups = []
    # One Adam for all parameters here. Megatron makes a second one for the experts of a mixture, which this GPT lacks.
    for inner in _inner(optimizer):
        for group in inner.param_groups:
            # Learning rate, betas, weight decay and so on. The Adam of Apex and of Transformer Engine counts its steps here, too.
            numbers = {name: value for name, value in group.items() if name != "params"}
            # Moments exp_avg and exp_avg_sq, each of its parameter's shape. Before the first step Adam has none: then {}.
            states = [dict(inner.state.get(one, {})) for one in group["params"]]
            groups.append({"numbers": numbers, "params": list(group["params"]), "states": states})
    # net.module is the GPTModel inside Megatron's DDP, with this rank's layers (--pp) and slices of matrices (--tp).
    return {"model": net.module.state_dict(), "groups": groups}


@torch.no_grad()
def put(stored: dict[str, Any], net: DistributedDataParallel, optimizer: MegatronOptimizer) -> None:
    """Fill in what `taken` returned in a process of the same rank."""
    # Copies into the weights that exist. With the distributed optimizer these are views of a flat buffer, and stay so.
    net.module.load_state_dict(stored["model"])
    groups = iter(stored["groups"])
    for inner in _inner(optimizer):
        # `groups` runs through the groups of all optimizers. zip asks param_groups first, so where they end it takes no item
        # of `groups` too many. strict=True would take one, to see whether `groups` has ended.
        for group, kept in zip(inner.param_groups, groups, strict=False):
            group.update(kept["numbers"])
            for one, value, state in zip(group["params"], kept["params"], kept["states"], strict=True):
                # In bf16 these are the float32 weights that Adam updates; load_state_dict above has filled only the bf16 ones.
                one.copy_(value)
                inner.state[one] = {name: _placed(moment, one) for name, moment in state.items()}


def _inner(optimizer: MegatronOptimizer) -> list[torch.optim.Optimizer]:
    return [one.optimizer for one in getattr(optimizer, "chained_optimizers", [optimizer])]


def _placed(moment: Any, one: torch.Tensor) -> Any:
    """A moment on its parameter's device. A step count stays in host memory; each parameter has its own."""
    if not isinstance(moment, torch.Tensor):
        return moment
    return moment.to(one.device, copy=True) if moment.shape == one.shape else moment.clone()
