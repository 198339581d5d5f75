"""DeepSpeed: writes the job's `[deepspeed]` table as ds_config.json, after checking its batch sizes against the world size."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from kit.allocation import Allocation
from kit.errors import Fault, nearest
from kit.frameworks import deepspeed_batch_sizes
from kit.frameworks.base import Extra, Framework
from kit.frameworks.deepspeed_batch_sizes import MICRO, STEPS, TOTAL
from kit.schema.job import Job
from kit.schema.launcher import Launcher
from kit.schema.wrong_value_messages import shown
from kit.validation import toml

FILE = "ds_config.json"
OPTIONS = Path(__file__).with_name("deepspeed-options.toml")
# An unknown key counts as a misspelling of a known one from this similarity on (difflib's ratio, 0 to 1).
_MISSPELT_CUTOFF = 0.88

# In these tables DeepSpeed 0.19 drops a key whose value is 'auto' and uses its default (DeepSpeedConfigModel).
_DEFAULTS = {"deepspeed.zero_optimization", "deepspeed.fp16", "deepspeed.bf16"}


class DeepSpeed:
    """Adds ds_config.json to the run folder, and the option that names it to the arguments."""

    tables = ("deepspeed",)

    def resources(self, job: Job) -> dict[str, int]:
        """No resources: the [deepspeed] table does not set any."""
        return {}

    def faults(self, job: Job, launcher: Launcher, allocation: Allocation) -> Iterator[Fault]:
        """Faults in [deepspeed], and arguments that the launcher's program does not read because ds_config.json holds them."""
        if job.is_launchers:
            yield from _not_options(job)
        if job.deepspeed is not None:
            yield from broken(job.deepspeed, allocation.world_size if job.is_launchers else None)

    def prepare(self, job: Job, launcher: Launcher, allocation: Allocation) -> Extra:
        """The completed configuration, as a file and as an option.

        For the user's own program, batch sizes that do not fit are warnings.
        """
        if job.deepspeed is None:
            return Extra()
        config: Mapping[str, Any] = job.deepspeed
        warnings: tuple[Fault, ...] = ()
        if job.is_launchers:
            config = completed(config, allocation.world_size)
        else:
            split = deepspeed_batch_sizes.split(job.args, config)
            warnings = tuple(deepspeed_batch_sizes.doubtful(config, allocation.world_size, split))
            # With a warning, leave the table as it is written: the program may split its model in a way that the kit cannot see.
            config = config if warnings else completed(config, allocation.world_size // split)
            # The user's own program may be a Hugging Face Trainer, which replaces 'auto'.
            warnings += tuple(_autos(job.deepspeed))
        file = {FILE: json.dumps(config, indent=2) + "\n"}
        args = ("--ds-config", f"{{run}}/{FILE}")
        return Extra(files=file, args=args, explained=explained(job.deepspeed), warnings=warnings)


framework: Framework = DeepSpeed()


def completed(table: Mapping[str, Any], copies: int) -> dict[str, Any]:
    """The table with all batch sizes filled in. copies: the number of data parallel ranks."""
    return {**table, **deepspeed_batch_sizes.completed(deepspeed_batch_sizes.given(table), copies)}


def broken(table: Mapping[str, Any], copies: int | None) -> Iterator[Fault]:
    """Batch sizes that do not multiply, 'auto', misspelt keys, and settings that ZeRO refuses.

    copies: the number of data parallel ranks; None for the user's own program, which may split its model and may replace 'auto'.
    """
    yield from _misspelt(table)
    yield from _contradictions(table)
    yield from deepspeed_batch_sizes.not_numbers(table, copies or 1)
    if copies is not None:
        yield from _autos(table)
        yield from deepspeed_batch_sizes.uneven(table, copies)


def _not_options(job: Job) -> Iterator[Fault]:
    """Options of other GPT programs that this one does not read: it takes these values from the configuration."""
    given = (
        dict.fromkeys(job.args, "")
        | dict(pairwise(job.args))
        | dict(word.split("=", 1) for word in job.args if "=" in word)
    )
    for option, key in (("--batch-size", TOTAL), ("--accumulate", STEPS), ("--clip", "gradient_clipping")):
        if option in given:
            value = given[option] if given[option].replace(".", "", 1).isdecimal() else 1
            problem = f"with [deepspeed], {option} is not read: the configuration has the key deepspeed.{key}"
            yield Fault(key="args", problem=problem, hint=f"[deepspeed]\n       {key} = {value}")


def _misspelt(table: Mapping[str, Any], prefix: str = "deepspeed") -> Iterator[Fault]:
    """Keys that look misspelt. DeepSpeed ignores some unknown keys, and fails on others only after all ranks have started."""
    known = tomllib.loads(OPTIONS.read_text(encoding="utf-8"))
    for key, value in table.items():
        where, names = f"{prefix}.{key}", known[prefix]
        if key not in names and (near := nearest(key, names, cutoff=_MISSPELT_CUTOFF)):
            problem = f"DeepSpeed has no such key; did you mean {near!r}?"
            yield Fault(key=where, problem=problem, hint=f"{near} = {toml(value)}")
        if where in known and isinstance(value, Mapping):
            yield from _misspelt(value, where)


def _auto_keys(table: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """The keys in a table and its sub-tables whose value is 'auto'."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _auto_keys(value, f"{prefix}.{key}")
        elif value == "auto":
            yield f"{prefix}.{key}"


def explained(table: Mapping[str, Any]) -> tuple[str, ...]:
    """Comments for the batch script: keys that are 'auto' count as not given."""
    keys = [
        key
        for name, value in table.items()
        if f"deepspeed.{name}" in _DEFAULTS and isinstance(value, Mapping)
        for key in _auto_keys(value, name)
    ]
    return (f"DeepSpeed takes its own default for {', '.join(keys)} ('auto').",) if keys else ()


def _contradictions(table: Mapping[str, Any]) -> Iterator[Fault]:
    zero = table.get("zero_optimization", {})
    stage = zero.get("stage", 0) if isinstance(zero, Mapping) else 0
    stage = 0 if stage == "auto" else stage
    if isinstance(stage, list) and deepspeed_batch_sizes.tunes(table):
        return  # the autotuner tries each of them
    if stage not in (0, 1, 2, 3):
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
    """'auto' on keys where DeepSpeed fails on it or takes the text for true. On batch sizes it is fine: the kit computes them."""
    for key, value in table.items():
        where = f"{prefix}.{key}"
        if where in _DEFAULTS:
            continue
        if isinstance(value, Mapping):
            yield from _autos(value, where)
        elif value == "auto" and not (prefix == "deepspeed" and key in {TOTAL, MICRO, STEPS}):
            problem = "only the Hugging Face Trainer replaces 'auto': without it, DeepSpeed fails here or reads the text as true"
            yield Fault(key=where, problem=problem, hint="write the value, or remove the line")
