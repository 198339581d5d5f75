"""The launchers' own programs: whether the layout and the batch that their arguments ask for can be had on the job's ranks.

The rules are those that the programs check themselves (launchers/lib/ranks.py, check_layout of launchers/megatron/train.py), after
the job has its nodes. launcher.toml says which program has which options, and their defaults.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from kit.allocation import Allocation
from kit.errors import ConfigError, Fault
from kit.spec.job import Job
from kit.spec.launcher import Launcher

# What is wrong, what is allowed.
Broken = tuple[str, str]


def check(job: Job, launcher: Launcher, allocation: Allocation, *, file: str) -> None:
    """ConfigError with each rule that the arguments break, and its numbers. A program of the job's own is none of our business."""
    name = launcher.script if job.script is None else PurePosixPath(job.script).name
    told = launcher.fits.get(name or "", {})
    try:
        options = _read(job.args, told)
        broken = [*_too_small(options, told)] or [*_uneven(options, allocation.world_size), *_alone(options)]
    except argparse.ArgumentError as error:
        broken = [(f"{error.argument_name}: {error.message}", "a whole number")]
    if broken:
        raise ConfigError.of(*(Fault(file=file, key="args", got=got, allowed=allowed) for got, allowed in broken))


def _read(args: tuple[str, ...], told: Mapping[str, int]) -> dict[str, int]:
    """The options by name, switches as 0 and 1. ArgumentError for a value that is no number."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, default in told.items():
        if isinstance(default, bool):
            parser.add_argument(_option(name), action="store_true")
        else:
            parser.add_argument(_option(name), type=int, default=default)
    return dict(vars(parser.parse_known_args(args)[0]))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _too_small(options: Mapping[str, int], told: Mapping[str, int]) -> Iterator[Broken]:
    for name, value in options.items():
        least = min(told[name], 1)  # 0 where the default is none
        if value < least:
            yield f"{_option(name)} {value}", f"{least} or more"


def _uneven(options: Mapping[str, int], world_size: int) -> Iterator[Broken]:
    """What cannot be dealt out to the ranks, or to the parts of the model, without a remainder."""
    tp, pp, cp, heads = (options.get(name, 1) for name in ("tp", "pp", "cp", "heads"))
    if world_size % (tp * pp * cp):
        yield f"--tp {tp} x --pp {pp} x --cp {cp} = {tp * pp * cp}", f"a divisor of the world size, {world_size}"
    else:
        yield from _batch(options, world_size // (tp * pp * cp))
    if world_size % (copies := options.get("replicate", 1)):
        yield f"--replicate {copies}", f"a divisor of the world size, {world_size}"
    for name, whole, by, part in (
        ("heads", heads, "--tp", tp),
        ("kv_heads", options.get("kv_heads") or heads, "--tp", tp),
        ("heads", heads, "--kv-heads", options.get("kv_heads") or 1),
        ("layers", options.get("layers", 0), "--pp", pp),
        ("context", options.get("context", 0), "--tp", tp if options.get("sequence_parallel") else 1),
    ):
        if name in options and whole % part:
            yield f"{by} {part}", f"a divisor of {_option(name)} {whole}"
    if options.get("dim", 0) % (2 * heads):  # rotary positions turn the channels of a head in pairs
        yield f"--dim {options['dim']} with --heads {heads}", f"a multiple of 2 x {heads}"


def _batch(options: Mapping[str, int], data_parallel: int) -> Iterator[Broken]:
    batch, accumulate = options.get("batch_size", 0), options.get("accumulate", 1)
    if batch % (data_parallel * accumulate):
        got = f"--batch-size {batch} on {data_parallel} data parallel ranks x {accumulate} accumulation steps"
        yield got, f"a multiple of {data_parallel * accumulate}"


def _alone(options: Mapping[str, int]) -> Iterator[Broken]:
    """Options that want another one beside them."""
    if options.get("sequence_parallel") and options["tp"] == 1:
        yield "--sequence-parallel with --tp 1", "--tp 2 or more"
    for name, on in (("sequence_parallel", options.get("sequence_parallel")), ("cp", options.get("cp", 1) > 1)):
        if on and not options["transformer_engine"]:
            yield f"{_option(name)} without --transformer-engine", "with it: megatron.core's own layers cannot do it"
