"""Parts of the training loop that the programs share: optimizer, learning rate, validation, stop on request, and the end."""

import argparse
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional

from . import checkpoint, data, metrics, ranks, reports, stop
from .memory import InMemory


class Save(Protocol):
    """Saves the state as the checkpoint of this step. With `last`, returns only when it is on disk."""

    def __call__(self, *, last: bool = False) -> None: ...


def decay_groups(parameters: Iterable[torch.nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer: matrices, which decay, and vectors (norms and biases), which do not. None is empty.

    A norm's weight scales a channel, and a bias shifts one. A pull to 0 does not regularize them: it changes what the next layer
    gets. wd_mult is Megatron's key for the share of the weight decay that a group gets; set_pace reads it.
    """
    listed = list(parameters)
    # ds_shape: of a parameter that ZeRO 3 has sharded, which is empty itself.
    dimensions = [len(getattr(one, "ds_shape", one.shape)) for one in listed]
    matrices = [one for one, count in zip(listed, dimensions, strict=True) if count > 1]
    vectors = [one for one, count in zip(listed, dimensions, strict=True) if count <= 1]
    groups = [
        {"params": matrices, "weight_decay": weight_decay, "wd_mult": 1.0},
        {"params": vectors, "weight_decay": 0.0, "wd_mult": 0.0},
    ]
    return [group for group in groups if group["params"]]


def adamw(
    parameters: Iterable[torch.nn.Parameter], *, lr: float, weight_decay: float | None, beta2: float = 0.95
) -> torch.optim.AdamW:
    """AdamW, in one fused kernel where all parameters are on a GPU. Norms and biases do not decay; None: nothing does."""
    listed = list(parameters)
    # The fused kernel updates all parameters in one launch, instead of several launches for each of them.
    on_gpu = all(one.is_cuda for one in listed)
    groups = [{"params": listed, "weight_decay": 0.0}] if weight_decay is None else decay_groups(listed, weight_decay)
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, beta2), fused=True if on_gpu else None)


def set_pace(optimizer: Any, *, lr: float, weight_decay: float | None = None) -> float:
    """Set the learning rate of the next step, and the weight decay if given, in all parameter groups. Returns the rate.

    A group with wd_mult gets this share of the weight decay.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr
        if weight_decay is not None:
            group["weight_decay"] = weight_decay * group.get("wd_mult", 1.0)
    return lr


def after_step(
    requests: stop.StopRequest,
    log: metrics.MetricsFile,
    profile: metrics.ProfilerTrace,
    save: Save,
    step: int,
    *,
    every: int,
    in_memory: InMemory | None = None,
) -> int | None:
    """Save every `every` steps (0: never) and where a stop was requested. Returns the exit code of the stop; None: continue."""
    reports.progress.step(step)
    if in_memory is not None:
        in_memory.after_step(step)
    if every and step % every == 0:
        with reports.progress.phase("save"):
            save()
    return stopped(requests, log, profile, save, step)


def stopped(
    requests: stop.StopRequest, log: metrics.MetricsFile, profile: metrics.ProfilerTrace, save: Save, step: int
) -> int | None:
    """Save where a rank was asked to stop, and return the exit code. None: continue training."""
    number = requests.agreed()
    return leave(number, requests, log, profile, save, step) if number else None


def leave(  # noqa: PLR0917 - in the order of `stopped`, with the signal first
    number: int,
    requests: stop.StopRequest,
    log: metrics.MetricsFile,
    profile: metrics.ProfilerTrace,
    save: Save,
    step: int,
) -> int:
    """Save, and report the stop that signal `number` requested. Returns the exit code."""
    with reports.progress.phase("save"):
        save(last=True)
    profile.close()
    log.record("stopped", f"stopped by signal {number} at step {step}, saved", step=step, signal=number)
    return requests.finish(number, step)


class Steps:
    """Counts, logs, validates and saves the steps of a program that trains on text, as the options say, and ends the training.

    while steps.go_on():
        ...  # one optimizer step
        steps.done(loss.item, lr=lr)
    return steps.end()
    """

    def __init__(  # noqa: PLR0917 - the parts of every program, in the order in which they are made
        self,
        args: argparse.Namespace,
        world: ranks.Ranks,
        log: metrics.MetricsFile,
        requests: stop.StopRequest,
        profile: metrics.ProfilerTrace,
        checkpoints: checkpoint.Checkpoints,
        save: Save,
        test: Callable[[], float],
        *,
        position: dict[str, int],
        samples: int,
        speed: metrics.Speed,
        in_memory: InMemory | None = None,
    ) -> None:
        """position: `step` and `samples` so far, updated here. samples: sequences in a step, over all ranks.

        test: returns the loss on the validation windows. Called by all ranks.
        """
        self._args, self._world, self._position, self._samples, self._speed = args, world, position, samples, speed
        self._log, self._requests, self._profile = log, requests, profile
        self._checkpoints, self._save, self._test = checkpoints, save, test
        self._in_memory = in_memory
        self._code: int | None = None
        reports.progress.step(position["step"])

    def go_on(self) -> bool:
        """Whether to make another step: false after the last one, and once a rank was asked to stop."""
        if self._code is not None or self._position["step"] >= self._args.steps:
            return False
        self._profile.step(self._position["step"] + 1)
        return True

    def done(self, loss: Callable[[], float], **values: torch.Tensor | float | None) -> None:
        """Finish a step. loss and values are this rank's. Only logged steps read them, because reading waits for the GPU."""
        position = self._position
        position["step"] += 1
        position["samples"] += self._samples
        self._speed.step()
        if self._args.log_every and position["step"] % self._args.log_every == 0:
            read = {name: float(value or 0.0) for name, value in values.items()}
            read["tokens"] = position["samples"] * self._args.context
            self._log.step(position["step"], loss(), self._speed, self._world, **read)
        if self._args.eval_every and position["step"] % self._args.eval_every == 0:
            evaluate(self._test, position["step"], position["step"], self._log, self._checkpoints, self._save)
            self._speed.restart()
        every = self._args.checkpoint_every
        # All ranks get here in every step, also where nothing is saved: the question whether a rank was asked to stop
        # is a collective.
        self._code = after_step(
            self._requests,
            self._log,
            self._profile,
            self._save,
            position["step"],
            every=every,
            in_memory=self._in_memory,
        )

    def end(self) -> int:
        """The exit code of a stop. Without a stop: save the last checkpoint, report the test loss, and return 0."""
        if self._code is not None:
            return self._code
        close(self._requests, self._profile, self._save)
        with reports.progress.phase("evaluate"):
            loss = self._test()
        self._log.final(self._position["step"], loss, self._world)
        return 0


def evaluate(  # noqa: PLR0917 - the parts of a step
    test: Callable[[], float],
    step: int,
    number: int,
    log: metrics.MetricsFile,
    checkpoints: checkpoint.Checkpoints,
    save: Save,
    **more: float,
) -> None:
    """Validate after a step; save a checkpoint if the loss is the smallest yet. number: the checkpoint's. Called by all ranks."""
    began = time.perf_counter()
    with reports.progress.phase("evaluate"):
        loss = test()
    best = checkpoints.is_best(number, loss)
    log.evaluated(step, loss, best=best, seconds=time.perf_counter() - began, **more)
    if best:
        with reports.progress.phase("save"):
            save()


def close(requests: stop.StopRequest, profile: metrics.ProfilerTrace, save: Save) -> None:
    """Save the last checkpoint after the last step. Returns when it is on disk."""
    with reports.progress.phase("save"):
        save(last=True)
    requests.close()
    profile.close()


@torch.no_grad()
def test_loss(  # noqa: PLR0917 - the parts of every program, in the order in which they are made
    net: torch.nn.Module,
    test_set: data.Images,
    windows: int,
    micro_batch: int,
    world: ranks.Ranks,
    half: torch.dtype | None = None,
) -> float:
    """Mean loss of the first `windows` test windows, the same on every layout. `net`: tokens -> logits. Called by all ranks.

    All ranks make the same number of forward passes, because a sharded model gathers its weights from all of them.
    half: the type of the training's autocast, in which the test computes, too; None: no autocast.
    """
    net.eval()
    summed = counted = 0.0
    for tokens, targets, weights in data.fixed(test_set, windows, micro_batch, world):
        with torch.autocast(world.device.type, dtype=half, enabled=half is not None):
            logits = net(tokens.to(world.device))
        # Logits (B, T, V) and targets (B, T), flattened; then the mean over each window's T tokens, (B,).
        losses = functional.cross_entropy(
            logits.float().flatten(0, 1), targets.to(world.device).flatten(), reduction="none"
        )
        summed += float((losses.view(targets.shape).mean(1).double().cpu() * weights).sum())
        counted += float(weights.sum())
    net.train()
    for (
        part
    ) in net.modules():  # else the parameters stay unsharded, also for a checkpoint, until the next backward pass
        if isinstance(part, FSDPModule):
            part.reshard()
    summed, counted = ranks.total(summed, counted, world=world)
    return summed / counted
