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
from kit.frameworks.titan_words import CFG_OPTIONS
from kit.schema.diloco import DiLoCo
from kit.schema.job import Job
from kit.schema.launcher import Launcher

REPLICATE, SHARD = "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"
# Degrees that split one copy of the model over ranks.
_SPLIT = tuple(f"parallelism.{kind}_parallel_degree" for kind in ("tensor", "pipeline", "context"))
_SECTION = "fault_tolerance"
_METHOD, _ENABLE = f"{_SECTION}.semi_sync_method", f"{_SECTION}.enable"
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
    numbers = dict(_DEFAULTS)
    for section, table in config.items():
        if isinstance(table, Mapping):
            given = {f"{section}.{name}": value for name, value in table.items()}
            numbers |= {key: value for key, value in given.items() if key in numbers and isinstance(value, int)}
    for key, value in _arguments(words):
        if key in numbers and value.lstrip("-").isdigit():
            numbers[key] = int(value)
    return numbers


def _arguments(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pairs of option and value, from `--a.b 2`, `--a.b=2`, and `a.b=2` after --cfg_options. Dashes may stand for underscores."""
    overrides = False
    for place, word in enumerate(words):
        key, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            overrides = word == CFG_OPTIONS
            given = value if equals else words[place + 1] if place + 1 < len(words) else ""
            yield key.replace("-", "_"), given
        elif overrides and equals:
            yield key.replace("-", "_"), value


def wants_groups(config: Mapping[str, Any], words: Sequence[str]) -> bool:
    """Whether a configuration is for replica groups: it turns fault tolerance on, or says how groups average."""
    table = config.get("fault_tolerance")
    tolerance = (
        {"enable": str(table.get("enable")), "method": str(table.get("semi_sync_method"))}
        if isinstance(table, Mapping)
        else {}
    )
    given = dict(_arguments(words))
    if _ENABLE in given:  # a switch has no value
        tolerance["enable"] = "false" if given[_ENABLE].lower() == "false" else "true"
    if f"{_SECTION}.no_enable" in given:
        tolerance["enable"] = "false"
    tolerance["method"] = given.get(_METHOD, tolerance.get("method", ""))
    return tolerance.get("enable", "").lower() == "true" or tolerance["method"].lower() not in {"", "none", "null"}


def plain_ddp(config: Mapping[str, Any], words: Sequence[str], ranks: int) -> list[str]:
    """Arguments that make each rank, or each set of context parallel ranks, its own copy of the model.

    TorchTitan shards by default. Degrees that words give stay as they are.
    """
    split = prod(settings(config, words)[key] for key in _SPLIT)
    given = dict(_arguments(words))
    if SHARD in given and REPLICATE not in given:
        return []
    degrees = {REPLICATE: max(1, ranks // split), SHARD: 1}
    return [f"--{key}={degree}" for key, degree in degrees.items() if key not in given]


def broken(
    config: Mapping[str, Any],
    words: Sequence[str],
    *,
    ranks: int,
    count: int,
    ranks_per_node: int = 0,
    batch_of_all: bool = True,
) -> Iterator[Fault]:
    """Rules of TorchTitan that are broken.

    ranks: of one replica group, or of the one training. count: the number of groups. ranks_per_node: for the advice; 0: not known.
    batch_of_all: the global batch is that of all groups together, as in TorchTitan's releases, and not that of one group.
    """
    known = settings(config, words)
    degrees = [known[REPLICATE], *(known[key] for key in _SPLIT)]
    shard = known[SHARD] if known[SHARD] > 0 else ranks // prod(degrees)
    if prod(degrees) * shard != ranks:
        shown = " x ".join(
            f"{key.removeprefix('parallelism.').removesuffix('_degree')} {known[key]}" for key in _degrees(known)
        )
        of_what = "a replica group" if count > 1 else "the training"
        problem = f"{shown or prod(degrees)} is not {ranks}, the number of ranks of {of_what}"
        yield Fault(key="parallelism", problem=problem, hint=_fitting(known, prod(degrees), count, ranks_per_node))
        return
    yield from _unable(config, words, known, shard=shard, count=count)
    copies = known[REPLICATE] * shard * (count if batch_of_all else 1)
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
        hint = (
            "leave out the options of replica groups for one training over all nodes; for groups with an outer optimizer: "
            'semi_sync_method = "diloco" in [fault_tolerance]'
        )
        yield Fault(key=_METHOD, problem=problem, hint=hint)


def _fitting(known: Mapping[str, int], least: int, count: int, ranks_per_node: int) -> str:
    """Nodes for the degrees as they are, if whole nodes fit; else a degree that fits."""
    wanted = least * max(1, known[SHARD])
    if ranks_per_node and wanted % ranks_per_node == 0:
        return f"--{'nodes-per-replica' if count > 1 else 'nodes'} {wanted // ranks_per_node}"
    if known[SHARD] > 0:
        return "[parallelism]\n       data_parallel_shard_degree = -1"
    widest = max((REPLICATE, *_SPLIT), key=lambda key: known[key])
    return f"[parallelism]\n       {widest.removeprefix('parallelism.')} = 1"


def _degrees(known: Mapping[str, int]) -> list[str]:
    """The degrees that differ from the defaults."""
    return [key for key in (REPLICATE, SHARD, *_SPLIT) if known[key] != _DEFAULTS[key]]
