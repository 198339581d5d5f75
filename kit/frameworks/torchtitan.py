"""TorchTitan: passes replica groups as its arguments, and checks rules that it would check only after all ranks have loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from kit.allocation import Allocation
from kit.errors import Fault
from kit.frameworks import diloco
from kit.frameworks.base import Extra, Framework
from kit.frameworks.nearest_multiple_or_divisor import multiple
from kit.schema.diloco import DiLoCo
from kit.schema.job import Job
from kit.schema.launcher import Launcher

REPLICATE, SHARD = "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"
# Degrees that split one copy of the model over ranks.
_SPLIT = tuple(f"parallelism.{kind}_parallel_degree" for kind in ("tensor", "pipeline", "context"))
_METHOD = "fault_tolerance.semi_sync_method"
_LOCAL, _GLOBAL = "training.local_batch_size", "training.global_batch_size"
# TorchTitan's own defaults.
_DEFAULTS = {REPLICATE: 1, SHARD: -1, **dict.fromkeys(_SPLIT, 1), _LOCAL: 8, _GLOBAL: -1}


# The one option of our own program that TorchTitan has under another name.
_QUORUM = "--min-replicas"


class TorchTitan:
    """Adds replica groups if the start shape asks for them. TorchTitan's own file sets how they average."""

    tables = ("diloco",)

    def resources(self, job: Job) -> dict[str, int]:
        """No resources: the [diloco] table divides the nodes that the job has."""
        return {}

    def faults(self, job: Job, launcher: Launcher, allocation: Allocation) -> Iterator[Fault]:
        """Faults: a [diloco] table without replica groups, keys that belong in TorchTitan's own file, and those of the groups."""
        if job.shape != "replicas":
            if job.diloco is not None:
                problem = f"the start shape {job.shape!r} has no replica groups, so this table has no effect"
                yield Fault(key="diloco", problem=problem, hint='shape = "replicas"')
            return
        for name in (job.diloco or DiLoCo()).options():
            if name != _QUORUM:
                key = name.removeprefix("--").replace("-", "_")
                hint = "[fault_tolerance] in TorchTitan's file, and remove the line here"
                yield Fault(key=f"diloco.{key}", problem="TorchTitan reads this from its own file", hint=hint)
        yield from diloco.framework.faults(job, launcher, allocation)

    def prepare(self, job: Job, launcher: Launcher, allocation: Allocation) -> Extra:
        """The groups' roles and picture, with TorchTitan's option for the quorum."""
        if job.shape != "replicas":
            return Extra()
        table = job.diloco or DiLoCo()
        least = diloco.least(table, table.groups or len(diloco.groups_of(job, allocation)))
        quorum = f"--fault_tolerance.min_replica_size={least}"
        return replace(diloco.framework.prepare(job, launcher, allocation), args=(quorum,))


framework: Framework = TorchTitan()


def settings(config: Mapping[str, Any], words: Sequence[str]) -> dict[str, int]:
    """The integers that the rules need. words: arguments, which override the file: `--a.b 2` or `--a.b=2`."""
    found = dict(_DEFAULTS)
    for section, table in config.items():
        if isinstance(table, Mapping):
            given = {f"{section}.{name}": value for name, value in table.items()}
            found |= {key: value for key, value in given.items() if key in found and isinstance(value, int)}
    for key, value in _arguments(words):
        if key in found and value.lstrip("-").isdigit():
            found[key] = int(value)
    return found


def _arguments(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pairs of option and value, from `--a.b 2` and `--a.b=2`. TorchTitan accepts dashes for underscores."""
    for place, word in enumerate(words):
        key, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            given = value if equals else words[place + 1] if place + 1 < len(words) else ""
            yield key.replace("-", "_"), given


def plain_ddp(config: Mapping[str, Any], words: Sequence[str], ranks: int) -> list[str]:
    """Arguments that make each rank, or each set of context parallel ranks, its own copy of the model.

    TorchTitan shards by default.
    """
    split = prod(settings(config, words)[key] for key in _SPLIT)
    return [f"--{REPLICATE}={max(1, ranks // split)}", f"--{SHARD}=1"]


def broken(config: Mapping[str, Any], words: Sequence[str], *, ranks: int, count: int) -> Iterator[Fault]:
    """Rules of TorchTitan that are broken. ranks: of one replica group. count: the number of groups; their batches add up."""
    known = settings(config, words)
    degrees = [known[REPLICATE], *(known[key] for key in _SPLIT)]
    shard = known[SHARD] if known[SHARD] > 0 else ranks // prod(degrees)
    if prod(degrees) * shard != ranks:
        shown = " x ".join(
            f"{key.removeprefix('parallelism.').removesuffix('_degree')} {known[key]}" for key in _degrees(known)
        )
        problem = f"{shown or prod(degrees)} is not {ranks}, the number of ranks of a replica group"
        yield Fault(key="parallelism", problem=problem, hint="[parallelism]\n       data_parallel_shard_degree = -1")
        return
    yield from _unable(config, words, known, shard=shard, count=count)
    copies = known[REPLICATE] * shard * count
    if known[_GLOBAL] > 0 and known[_GLOBAL] % (known[_LOCAL] * copies):
        share = known[_LOCAL] * copies
        problem = (
            f"{known[_GLOBAL]} is not a multiple of {_LOCAL} {known[_LOCAL]} x {copies} copies of the model = {share}"
        )
        yield Fault(key=_GLOBAL, problem=problem, hint=f"global_batch_size = {multiple(known[_GLOBAL], share)}")


def _unable(
    config: Mapping[str, Any], words: Sequence[str], known: Mapping[str, int], *, shard: int, count: int
) -> Iterator[Fault]:
    """Combinations that TorchTitan does not support without sharding: the other features are built on FSDP's units."""
    tensor, pipeline, context = (known[key] for key in _SPLIT)
    if shard * context > 1:
        return
    if known[REPLICATE] > 1 and tensor * pipeline > 1:
        problem = "TorchTitan cannot combine DDP copies with tensor or pipeline parallelism; with HSDP (sharded copies) it can"
        copies = known[REPLICATE] // 2
        instead = f"{REPLICATE}={copies} --{SHARD}=2" if copies and known[REPLICATE] % 2 == 0 else f"{REPLICATE}=1"
        yield Fault(key="parallelism", problem=problem, hint=f'--extra-args "--{instead}"')
    table = config.get("fault_tolerance", {})
    method = dict(_arguments(words)).get(_METHOD, table.get("semi_sync_method") if isinstance(table, Mapping) else None)
    if count > 1 and not method:
        problem = (
            "TorchTitan averages the gradients of replica groups in FSDP's hooks, and a group without shards has none"
        )
        hint = '[fault_tolerance]\n       semi_sync_method = "diloco"'
        yield Fault(key=_METHOD, problem=problem, hint=hint)


def _degrees(known: Mapping[str, int]) -> list[str]:
    """The degrees that differ from the defaults."""
    return [key for key in (REPLICATE, SHARD, *_SPLIT) if known[key] != _DEFAULTS[key]]
