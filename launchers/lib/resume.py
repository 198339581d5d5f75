"""Compares a program with the checkpoint that it would resume: program, data, seed, shape, batch and optimizer.

complete.json of a checkpoint holds what `told` returns. Where a value must be equal and differs, the program ends with one
sentence. Where a value may differ, the new one is applied from now on, and the program reports it.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from . import checkpoint, metrics, permutation, reports
from .memory import InMemory
from .ranks import Ranks

# Options that change no number of the training.
_RUN_OPTIONS = {
    "config", "device", "run_dir", "log_every", "profile_steps", "profile_ranks", "checkpoint_dir", "checkpoint_every",
    "checkpoint_keep", "checkpoint_async", "checkpoint_memory_every", "workers", "test_windows", "eval_every",
    "test_rollouts", "compile", "data", "model",
    # How the text is made. The digest of the text is compared instead.
    "tokenizer", "separator", "text_key", "validation", "skip_bad",
}  # fmt: skip
# Options that must keep their value. Another one means other tensors, another order of the data, or other optimizer moments.
_MUST_BE_EQUAL = {
    "data", "seed", "shape", "layers", "heads", "kv_heads", "dim", "context", "width", "image_size", "optimizer",
    "init_from", "vocabulary",
}  # fmt: skip

# What the optimizer decays, as checkpoints record it (loop.decay_groups). Older ones have no record: norms and biases decayed, too.
WEIGHT_DECAY_ON = "matrices"

# What older versions of the kit did in another way: the key of a checkpoint's record, and what its run did.
_RECIPE = {
    "order": "its run read the samples in the order of another version of the kit. In the order of this one, some of the epoch "
    "would come twice and others never.",
    "weight_decay_on": "the weight decay of its run was also that of norms and biases; now only matrices decay.",
}

Told = dict[str, Any]


def told(
    program: str,
    args: argparse.Namespace,
    *,
    without: Iterable[str] = (),
    order: str | None = permutation.ORDER,
    weight_decay_on: str | None = WEIGHT_DECAY_ON,
    **more: Any,
) -> Told:
    """A checkpoint's record of its run. program: its path below launchers/. without: options that change no number.

    order: in which the program reads samples; None where it reads none. weight_decay_on: None where the program decays nothing.
    """
    left_out = _RUN_OPTIONS | set(without)
    arguments = {name: value for name, value in vars(args).items() if name not in left_out} | more
    made = {"program": program, "arguments": json.loads(json.dumps(arguments, default=str))}
    return (
        made | ({"order": order} if order else {}) | ({"weight_decay_on": weight_decay_on} if weight_decay_on else {})
    )


def begun(
    args: argparse.Namespace,
    world: Ranks,
    now: Told,
    log: metrics.MetricsFile,
    *,
    equal: Iterable[str] = (),
    in_memory: InMemory | None = None,
) -> tuple[checkpoint.Checkpoints, Path | None]:
    """The checkpoints of the options, and the newest sound one. Ends a program that cannot continue from it (see check).

    Seeds the generators where there is no checkpoint, because a new run begins. None also where `in_memory` has found a step that
    is not older: it is of this job, so that there is nothing to compare.
    """
    how = {"keep": args.checkpoint_keep, "background": args.checkpoint_async, "saved": log.saved}
    checkpoints = checkpoint.Checkpoints(args.checkpoint_dir, world, now, **how)
    if in_memory is not None and in_memory.find(checkpoints):
        return checkpoints, None
    resume_from = checkpoints.newest()
    if resume_from:
        check(resume_from, now, world, log, equal=equal)
    else:
        checkpoint.seed_all(args.seed, world)
    return checkpoints, resume_from


def say(log: metrics.MetricsFile, resume_from: Path | None, step: int) -> None:
    """Record that the program continues from a checkpoint; None: in memory, of which kit_memory adds the event."""
    where = str(resume_from or "memory")
    log.record("resumed", f"resumed from {where}, step {step}", step=step, path=where)
    if resume_from and log.writes:
        reports.resumed(step)


def check(resume_from: Path, now: Told, world: Ranks, log: metrics.MetricsFile, *, equal: Iterable[str] = ()) -> None:
    """End the program if it cannot continue from `resume_from`; else log the options that differ.

    equal: names of further options that must be equal. Called by all ranks. The first rank compares and prints.
    """
    box: list[Any] = [
        _compare(resume_from, checkpoint.marker(resume_from), now, _MUST_BE_EQUAL | set(equal))
        if world.is_main_process
        else None
    ]
    dist.broadcast_object_list(box, src=0, group=world.control)
    refusal, changed = box[0]
    if refusal:
        raise SystemExit(refusal if world.is_main_process else 1)
    if changed:
        log.record(
            "changed",
            f"options that differ from {resume_from.name}'s hold from now on: {'; '.join(changed)}",
            changed=changed,
        )


def _compare(resume_from: Path, then: dict[str, Any], now: Told, equal: set[str]) -> tuple[str | None, list[str]]:
    """The reason why the program cannot continue, if any; and the options that differ and are applied."""
    if then.get("program", now["program"]) != now["program"]:
        return (
            f"{resume_from}: written by {then['program']}; {now['program']} cannot read it.\n"
            "  try: --checkpoint-dir with a folder of its own",
            [],
        )
    for key, problem in _RECIPE.items():
        if key in now and then.get(key) != now[key]:
            hint = "the version that wrote it, or another --checkpoint-dir to begin again"
            return f"{resume_from}: {problem}\n  try: {hint}", []
    if "program" not in then:  # written before checkpoints named their program
        return None, []
    before, after = then["arguments"], now["arguments"]
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    changed = [f"{_option(name)} {_shown(before.get(name))} -> {_shown(after.get(name))}" for name in names]
    if any(name in equal for name in names):
        kept = [
            f"{_option(name)} is {_shown(after.get(name))}, and the checkpoint's is {_shown(before.get(name))}"
            for name in names
            if name in equal
        ]
        return (
            f"{resume_from}: {'; '.join(kept)}.\n  try: the checkpoint's value, or another --checkpoint-dir to begin again",
            [],
        )
    return None, changed


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)
