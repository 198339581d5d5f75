"""What the loops of the programs share: the optimizer and its learning rate, the stop on request, the test at the end."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch.nn import functional

from . import data, metrics, ranks, stop


class Save(Protocol):
    """Saves the state as the checkpoint of this step; with `last`, returns only when it is on disk."""

    def __call__(self, *, last: bool = False) -> None: ...


def adamw(
    parameters: Iterable[torch.nn.Parameter], *, lr: float, weight_decay: float, beta2: float = 0.95
) -> torch.optim.AdamW:
    """AdamW, in one fused kernel where all parameters are on a GPU."""
    listed = list(parameters)
    on_gpu = all(one.is_cuda for one in listed)
    return torch.optim.AdamW(
        listed, lr=lr, betas=(0.9, beta2), weight_decay=weight_decay, fused=True if on_gpu else None
    )


def set_pace(optimizer: Any, *, lr: float, weight_decay: float | None = None) -> float:
    """Set the learning rate of the next step, and with a number the weight decay, in all parameter groups; the rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr
        if weight_decay is not None:
            group["weight_decay"] = weight_decay
    return lr


def after_step(
    requests: stop.StopRequest, log: metrics.Metrics, profile: metrics.Profile, save: Save, step: int, *, every: int
) -> int | None:
    """Save where it is due (`every` steps; 0: never) or asked for with a stop, whose exit code is returned. None: train on."""
    if every and step % every == 0:
        save()
    return stopped(requests, log, profile, save, step)


def stopped(
    requests: stop.StopRequest, log: metrics.Metrics, profile: metrics.Profile, save: Save, step: int
) -> int | None:
    """The exit code, where a rank was asked to stop: the checkpoint of `step` is on disk then. None: train on."""
    number = requests.agreed()
    if not number:
        return None
    save(last=True)
    profile.close()
    log.record("stopped", f"stopped by signal {number} at step {step}, saved", step=step, signal=number)
    return requests.finish(number, step)


def close(requests: stop.StopRequest, profile: metrics.Profile, save: Save) -> None:
    """After the last step: the last checkpoint, on disk."""
    save(last=True)
    requests.close()
    profile.close()


@torch.no_grad()
def test_loss(
    score: Callable[[torch.Tensor], torch.Tensor],
    test_set: data.Images,
    windows: int,
    micro_batch: int,
    here: ranks.Ranks,
) -> float:
    """Mean loss of the first `windows` test windows, the same on every layout. `score`: tokens -> logits; called by all ranks.

    All ranks make as many forward passes, because a sharded model gathers its weights from all of them.
    """
    summed = counted = 0.0
    for tokens, targets, weights in data.fixed(test_set, windows, micro_batch, here):
        logits = score(tokens.to(here.device))
        losses = functional.cross_entropy(
            logits.float().flatten(0, 1), targets.to(here.device).flatten(), reduction="none"
        )
        summed += float((losses.view(targets.shape).mean(1).double().cpu() * weights).sum())
        counted += float(weights.sum())
    summed, counted = ranks.total(summed, counted, here=here)
    return summed / counted
