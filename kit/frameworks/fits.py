"""The launchers' own programs: whether the layout and the batch that their arguments ask for can be had on the job's ranks.

The rules are those that the programs check themselves (launchers/lib/ranks.py, check_layout of launchers/megatron/train.py), after
the job has its nodes. launcher.toml says which program has which options, and their defaults.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from kit.errors import ConfigError, Fault
from kit.layout import Layout
from kit.spec.job import Job
from kit.spec.launcher import Launcher

# What is wrong, what is allowed.
Broken = tuple[str, str]


def check(job: Job, launcher: Launcher, layout: Layout, *, file: str) -> None:
    """ConfigError with each rule that the arguments break, and its numbers. A program of the job's own is none of our business."""
    name = launcher.script if job.script is None else PurePosixPath(job.script).name
    options = _read(job.args, launcher.fits.get(name or "", {}))
    broken = list(_broken(options, layout.world_size)) if options else []
    if broken:
        raise ConfigError.of(*(Fault(file=file, key="args", got=got, allowed=allowed) for got, allowed in broken))


def _read(args: tuple[str, ...], defaults: Mapping[str, int]) -> dict[str, int]:
    """The options by name; none where the arguments cannot be read, which the program itself says better."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    try:
        return dict(vars(parser.parse_known_args(args)[0]))
    except argparse.ArgumentError:
        return {}


def _broken(options: Mapping[str, int], world_size: int) -> Iterator[Broken]:
    tp, pp, cp = (options.get(name, 1) for name in ("tp", "pp", "cp"))
    if min(options.values()) < 0 or min(tp, pp, cp) < 1:
        return
    if world_size % (tp * pp * cp):
        yield f"--tp {tp} x --pp {pp} x --cp {cp} = {tp * pp * cp}", f"a divisor of the world size, {world_size}"
    else:
        yield from _batch(options, world_size // (tp * pp * cp))
    heads = options.get("heads", 0)
    for name, whole, by, part in (
        ("replicate", world_size, "--replicate", options.get("replicate") or 1),
        ("heads", heads, "--tp", tp),
        ("kv_heads", options.get("kv_heads") or heads, "--tp", tp),
        ("heads", heads, "--kv-heads", options.get("kv_heads") or 1),
        ("layers", options.get("layers", 0), "--pp", pp),
    ):
        if name in options and whole % part:
            what = "the world size," if name == "replicate" else f"--{name.replace('_', '-')}"
            yield f"{by} {part}", f"a divisor of {what} {whole}"


def _batch(options: Mapping[str, int], data_parallel: int) -> Iterator[Broken]:
    batch, accumulate = options.get("batch_size"), options.get("accumulate") or 1
    if batch is not None and (batch < 1 or batch % (data_parallel * accumulate)):
        got = f"--batch-size {batch} on {data_parallel} data parallel ranks x {accumulate} accumulation steps"
        yield got, f"a multiple of {data_parallel * accumulate}"
