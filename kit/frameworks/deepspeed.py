"""DeepSpeed: the job's `[deepspeed]` table becomes ds_config.json, with its batch sizes checked against the world size."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.allocation import Allocation
from kit.errors import Fault, nearest
from kit.frameworks import deepspeed_batch_sizes
from kit.frameworks.base import Extra, Framework
from kit.frameworks.deepspeed_batch_sizes import MICRO, STEPS, TOTAL
from kit.spec.job import Job
from kit.spec.launcher import Launcher
from kit.spec.wrong_value_messages import shown
from kit.validation import toml

FILE = "ds_config.json"
OPTIONS = Path(__file__).with_name("deepspeed-options.toml")
# How alike an unknown name and a known one are when the first is taken for a misspelt second, of difflib's 0 to 1.
_ALIKE = 0.88

# Tables in which DeepSpeed 0.19 drops a key that is 'auto', so that its default counts (DeepSpeedConfigModel).
_DEFAULTS = {"deepspeed.zero_optimization", "deepspeed.fp16", "deepspeed.bf16"}


class DeepSpeed:
    """ds_config.json, and the option that names it."""

    tables = ("deepspeed",)

    def resources(self, job: Job) -> dict[str, int]:
        """See Framework."""
        return {}

    def faults(self, job: Job, launcher: Launcher, allocation: Allocation) -> Iterator[Fault]:
        """See Framework."""
        if job.is_launchers:
            yield from _not_options(job)
        if job.deepspeed is not None:
            yield from broken(job.deepspeed, allocation.world_size if job.is_launchers else None)

    def prepare(self, job: Job, launcher: Launcher, allocation: Allocation) -> Extra:
        """See Framework."""
        if job.deepspeed is None:
            return Extra()
        config: Mapping[str, Any] = job.deepspeed
        warnings: tuple[Fault, ...] = ()
        if job.is_launchers:
            config = completed(config, allocation.world_size)
        else:
            split = deepspeed_batch_sizes.split(job.args, config)
            warnings = tuple(deepspeed_batch_sizes.doubtful(config, allocation.world_size, split))
            # What does not fit is left as it was written: the program may split its model in a way that nothing here says.
            config = config if warnings else completed(config, allocation.world_size // split)
        file = {FILE: json.dumps(config, indent=2) + "\n"}
        args = ("--ds-config", f"{{run}}/{FILE}")
        return Extra(files=file, args=args, explained=explained(job.deepspeed), warnings=warnings)


framework: Framework = DeepSpeed()


def completed(table: Mapping[str, Any], copies: int) -> dict[str, Any]:
    """The table with every batch size in it, for so many data parallel ranks."""
    return {**table, **deepspeed_batch_sizes.completed(deepspeed_batch_sizes.given(table), copies)}


def broken(table: Mapping[str, Any], copies: int | None) -> Iterator[Fault]:
    """Sizes that do not multiply, 'auto', misspelt keys, and what ZeRO refuses. copies: data parallel ranks; None: not known."""
    yield from _misspelt(table)
    yield from _contradictions(table)
    yield from _autos(table)
    yield from deepspeed_batch_sizes.not_numbers(table)
    if copies is not None:
        yield from deepspeed_batch_sizes.uneven(table, copies)


def _not_options(job: Job) -> Iterator[Fault]:
    """Options of the other GPT programs that this launcher's program does not read: the configuration has them."""
    given = {word.partition("=")[0] for word in job.args}
    for option, key in (("--batch-size", TOTAL), ("--accumulate", STEPS), ("--clip", "gradient_clipping")):
        if option in given:
            problem = f"with [deepspeed], {option} is not read: the configuration has the key deepspeed.{key}"
            yield Fault(key="args", problem=problem, hint=f"[deepspeed]\n       {key} = 1")


def _misspelt(table: Mapping[str, Any], prefix: str = "deepspeed") -> Iterator[Fault]:
    """Keys that look like a slip of the pen: DeepSpeed takes no notice of some, and fails on others once all ranks are there."""
    known = tomllib.loads(OPTIONS.read_text(encoding="utf-8"))
    for key, value in table.items():
        where, names = f"{prefix}.{key}", known[prefix]
        if key not in names and (near := nearest(key, names, cutoff=_ALIKE)):
            problem = f"DeepSpeed has no such key; did you mean {near!r}?"
            yield Fault(key=where, problem=problem, hint=f"{near} = {toml(value)}")
        if where in known and isinstance(value, Mapping):
            yield from _misspelt(value, where)


def _left_out(table: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """The keys below a table that are 'auto'."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _left_out(value, f"{prefix}.{key}")
        elif value == "auto":
            yield f"{prefix}.{key}"


def explained(table: Mapping[str, Any]) -> tuple[str, ...]:
    """What a reader of the batch script should know: keys that are 'auto' count as not given."""
    keys = [
        key
        for name, value in table.items()
        if f"deepspeed.{name}" in _DEFAULTS and isinstance(value, Mapping)
        for key in _left_out(value, name)
    ]
    return (f"DeepSpeed takes its own default for {', '.join(keys)} ('auto').",) if keys else ()


def _contradictions(table: Mapping[str, Any]) -> Iterator[Fault]:
    zero = table.get("zero_optimization", {})
    stage = zero.get("stage", 0) if isinstance(zero, Mapping) else 0
    stage = 0 if stage == "auto" else stage
    if stage not in {0, 1, 2, 3}:
        problem = f"{shown(stage)} is not a stage of ZeRO"
        yield Fault(key="deepspeed.zero_optimization.stage", problem=problem, allowed="0, 1, 2, 3", hint="stage = 2")
    elif isinstance(zero, Mapping):
        if "offload_param" in zero and stage != 3:
            key = "deepspeed.zero_optimization.offload_param"
            problem = f"stage {stage} cannot offload parameters: only stage 3 shards them"
            yield Fault(key=key, problem=problem, hint="stage = 3")
        if "offload_optimizer" in zero and stage == 0:
            key = "deepspeed.zero_optimization.offload_optimizer"
            problem = "stage 0 cannot offload the optimizer: stages 1, 2 and 3 shard it"
            yield Fault(key=key, problem=problem, hint="stage = 1")
    on = [
        name for name in ("fp16", "bf16") if isinstance(table.get(name), Mapping) and table[name].get("enabled") is True
    ]
    if len(on) == 2:
        problem = "fp16 and bf16 are both enabled, and DeepSpeed trains in one of them"
        yield Fault(key="deepspeed.bf16.enabled", problem=problem, hint="enabled = false")


def _autos(table: Mapping[str, Any], prefix: str = "deepspeed") -> Iterator[Fault]:
    """'auto' where it is not a default: DeepSpeed fails on it, or takes the text for true. The kit works out batch sizes itself."""
    for key, value in table.items():
        where = f"{prefix}.{key}"
        if where in _DEFAULTS:
            continue
        if isinstance(value, Mapping):
            yield from _autos(value, where)
        elif value == "auto" and not (prefix == "deepspeed" and key in {TOTAL, MICRO, STEPS}):
            problem = (
                "'auto' is the Hugging Face Trainer's word: without it, DeepSpeed fails here or takes the text for true"
            )
            yield Fault(key=where, problem=problem, hint="write the value, or remove the line")
