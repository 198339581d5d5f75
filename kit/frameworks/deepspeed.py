"""DeepSpeed: the job's `[deepspeed]` table becomes ds_config.json, with its batch sizes checked against the world size.

The arithmetic and the names are those of DeepSpeed's documentation ("DeepSpeed Configuration JSON", batch size parameters).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.allocation import Allocation
from kit.errors import ConfigError, Fault, nearest
from kit.frameworks import Extra
from kit.frameworks.rules import multiple
from kit.spec.form import shown
from kit.spec.job import Job
from kit.spec.launcher import Launcher
from kit.spec.paths import is_launchers
from kit.validation import toml

FILE = "ds_config.json"
OPTIONS = Path(__file__).with_name("deepspeed-options.toml")
# How alike an unknown name and a known one are when the first is taken for a misspelt second, of difflib's 0 to 1.
_ALIKE = 0.88

_TOTAL, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def prepare(job: Job, allocation: Allocation, *, launcher: Launcher, file: str) -> Extra:
    """ds_config.json and the option that names it; nothing when the job has no [deepspeed]."""
    if is_launchers(job.script) and (faults := [*_not_options(job, file)]):
        raise ConfigError.of(*faults)
    if job.deepspeed is None:
        return Extra()
    config = resolve(job.deepspeed, allocation.world_size, file=file)
    return Extra(files={FILE: json.dumps(config, indent=2) + "\n"}, args=("--ds-config", f"{{run}}/{FILE}"))


def _not_options(job: Job, file: str) -> Iterator[Fault]:
    """Options of the other GPT programs that this launcher's program does not read: the configuration has them."""
    given = {word.partition("=")[0] for word in job.args}
    for option, key in (("--batch-size", _TOTAL), ("--accumulate", _STEPS), ("--clip", "gradient_clipping")):
        if option in given:
            problem = f"with [deepspeed], {option} is not read: the configuration has the key deepspeed.{key}"
            yield Fault(file=file, key="args", problem=problem, hint=f"[deepspeed]\n       {key} = 1")


def resolve(table: Mapping[str, Any], world_size: int, *, file: str) -> dict[str, Any]:
    """The table with every batch size in it. ConfigError for sizes that do not multiply, for 'auto', and for what ZeRO refuses."""
    faults = [*_misspelt(table, file), *_contradictions(table, file), *_autos(table, file)]
    config = dict(table)
    given = {name: table[name] for name in (_TOTAL, _MICRO, _STEPS) if table.get(name, "auto") != "auto"}
    wrong = [
        name for name, value in given.items() if not isinstance(value, int) or isinstance(value, bool) or value < 1
    ]
    faults += [
        Fault(key=f"deepspeed.{n}", problem=f"{shown(given[n])} is not a whole number of 1 or more", hint=f"{n} = 1")
        for n in wrong
    ]
    if not wrong:
        config |= _batch_sizes(given, world_size)
        if config[_MICRO] * config[_STEPS] * world_size != config[_TOTAL]:
            faults.append(_uneven(given, world_size, file))
    if faults:
        raise ConfigError.of(*faults, file=file)
    return config


def _batch_sizes(given: Mapping[str, int], world_size: int) -> dict[str, int]:
    """The three sizes; those left out follow from the others, as DeepSpeed works them out."""
    total, micro, steps = given.get(_TOTAL), given.get(_MICRO), given.get(_STEPS)
    if micro is None and total is not None:
        micro = total // ((steps or 1) * world_size)
    micro = micro or 1
    if steps is None:
        steps = total // (micro * world_size) if total is not None else 1
    return {_TOTAL: total if total is not None else micro * steps * world_size, _MICRO: micro, _STEPS: steps}


def _uneven(given: Mapping[str, int], world_size: int, file: str) -> Fault:
    """The total batch size that is not the product, or no multiple, of what else was given."""
    micro, steps = given.get(_MICRO), given.get(_STEPS)
    parts = [f"{micro} per GPU"] if micro else []
    parts += [f"{steps} accumulation steps"] if steps else []
    product, text = (micro or 1) * (steps or 1) * world_size, " x ".join([*parts, f"{world_size} ranks"])
    if micro and steps:
        problem = f"{given[_TOTAL]} is not {text} = {product}"
        hint = f"{_TOTAL} = {product}, or remove one of the three"
    else:
        problem = f"{given[_TOTAL]} is not a multiple of {text} = {product}"
        hint = f"{_TOTAL} = {multiple(given[_TOTAL], product)}"
    return Fault(file=file, key=f"deepspeed.{_TOTAL}", problem=problem, hint=hint)


def _misspelt(table: Mapping[str, Any], file: str, prefix: str = "deepspeed") -> Iterator[Fault]:
    """Keys that look like a slip of the pen: DeepSpeed takes no notice of some, and fails on others once all ranks are there."""
    known = tomllib.loads(OPTIONS.read_text(encoding="utf-8"))
    for key, value in table.items():
        where, names = f"{prefix}.{key}", known[prefix]
        if key not in names and (near := nearest(key, names, cutoff=_ALIKE)):
            problem = f"DeepSpeed has no such key; did you mean {near!r}?"
            yield Fault(file=file, key=where, problem=problem, hint=f"{near} = {toml(value)}")
        if where in known and isinstance(value, Mapping):
            yield from _misspelt(value, file, where)


def _contradictions(table: Mapping[str, Any], file: str) -> Iterator[Fault]:
    zero = table.get("zero_optimization", {})
    stage = zero.get("stage", 0) if isinstance(zero, Mapping) else 0
    if stage not in {0, 1, 2, 3}:
        problem = f"{shown(stage)} is not a stage of ZeRO"
        yield Fault(
            file=file, key="deepspeed.zero_optimization.stage", problem=problem, allowed="0, 1, 2, 3", hint="stage = 2"
        )
    elif isinstance(zero, Mapping):
        if "offload_param" in zero and stage != 3:
            key = "deepspeed.zero_optimization.offload_param"
            problem = f"stage {stage} cannot offload parameters: only stage 3 shards them"
            yield Fault(file=file, key=key, problem=problem, hint="stage = 3")
        if "offload_optimizer" in zero and stage == 0:
            key = "deepspeed.zero_optimization.offload_optimizer"
            problem = "stage 0 cannot offload the optimizer: stages 1, 2 and 3 shard it"
            yield Fault(file=file, key=key, problem=problem, hint="stage = 1")
    on = [name for name in ("fp16", "bf16") if isinstance(table.get(name), Mapping) and table[name].get("enabled")]
    if len(on) == 2:
        problem = "fp16 and bf16 are both enabled, and DeepSpeed trains in one of them"
        yield Fault(file=file, key="deepspeed.bf16.enabled", problem=problem, hint="enabled = false")


def _autos(table: Mapping[str, Any], file: str, prefix: str = "deepspeed") -> Iterator[Fault]:
    """'auto' is the Hugging Face Trainer's word; DeepSpeed itself fails on it, and the kit can only work out batch sizes."""
    for key, value in table.items():
        where = f"{prefix}.{key}"
        if isinstance(value, Mapping):
            yield from _autos(value, file, where)
        elif value == "auto" and not (prefix == "deepspeed" and key in {_TOTAL, _MICRO, _STEPS}):
            problem = "'auto' is the Hugging Face Trainer's word: DeepSpeed itself needs a value here"
            yield Fault(file=file, key=where, problem=problem, hint="write the value, or remove the line")
