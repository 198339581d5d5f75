"""The launchers' own programs: check that their parallelism and batch-size options divide the job's world size.

The programs check the same rules themselves after the job has its nodes (launchers/lib/ranks.py, check_layout of
launchers/megatron/train.py). launcher.toml lists each program's options and their defaults.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from kit.allocation import Allocation
from kit.errors import Fault
from kit.frameworks.nearest_multiple_or_divisor import divisor, multiple
from kit.schema.job import Job
from kit.schema.launcher import Launcher


def faults(job: Job, launcher: Launcher, allocation: Allocation) -> list[Fault]:
    """Each rule that the arguments break, with its numbers. The user's own program is not checked."""
    told = _checked_options(job, launcher)
    try:
        options = _read(job.args, told)
    except argparse.ArgumentError as error:
        return [_fault(f"{error.argument_name} takes a whole number", f"{error.argument_name} 1")]
    return [*_too_small(options, told)] or [*_uneven(options, allocation.world_size), *_missing_companions(options)]


def options_read(job: Job, launcher: Launcher) -> frozenset[str]:
    """The options whose values these rules read."""
    return frozenset(map(_option, _checked_options(job, launcher)))


def _checked_options(job: Job, launcher: Launcher) -> Mapping[str, int]:
    """The options that launcher.toml lists for the job's program, with their defaults."""
    name = launcher.script if job.script is None else PurePosixPath(job.script).name
    return launcher.fits.get(name or "", {})


def _fault(problem: str, instead: str) -> Fault:
    """A fault of `args`. instead: options that work."""
    return Fault(key="args", problem=problem, hint=f"{instead} in args")


def _read(args: tuple[str, ...], told: Mapping[str, int]) -> dict[str, int]:
    """The options by name; switches are 0 or 1. ArgumentError for a value that is not a number."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, default in told.items():
        if isinstance(default, bool):
            parser.add_argument(_option(name), action="store_true")
        else:
            parser.add_argument(_option(name), type=int, default=default)
    return dict(vars(parser.parse_known_args(args)[0]))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _too_small(options: Mapping[str, int], told: Mapping[str, int]) -> Iterator[Fault]:
    for name, value in options.items():
        least = min(told[name], 1)  # an option whose default is 0 may be 0
        if value < least:
            yield _fault(f"{_option(name)} {value} is too small: {least} is the least", f"{_option(name)} {least}")


def _uneven(options: Mapping[str, int], world_size: int) -> Iterator[Fault]:
    """Sizes that the ranks, or the parts of the model, cannot share evenly."""
    tp, pp, cp, heads = (options.get(name, 1) for name in ("tp", "pp", "cp", "heads"))
    if world_size % (tp * pp * cp):
        product = f"--tp {tp} x --pp {pp} x --cp {cp} = {tp * pp * cp}"
        yield _fault(
            f"{product} does not divide the world size, {world_size}", f"--tp {divisor(tp, world_size)} --pp 1 --cp 1"
        )
    else:
        yield from _batch(options, world_size // (tp * pp * cp))
    if world_size % (copies := options.get("replicate", 1)):
        problem = f"--replicate {copies} does not divide the world size, {world_size}"
        yield _fault(problem, f"--replicate {divisor(copies, world_size)}")
    for name, whole, by, part in (
        ("heads", heads, "--tp", tp),
        ("kv_heads", options.get("kv_heads") or heads, "--tp", tp),
        ("heads", heads, "--kv-heads", options.get("kv_heads") or 1),
        ("layers", options.get("layers", 0), "--pp", pp),
        ("context", options.get("context", 0), "--tp", tp if options.get("sequence_parallel") else 1),
    ):
        if name in options and whole % part:
            instead = (
                f"{_option(name)} {multiple(whole, part)}" if by != "--kv-heads" else f"{by} {divisor(part, whole)}"
            )
            yield _fault(f"{by} {part} does not divide {_option(name)} {whole}", instead)
    if options.get("dim", 0) % (2 * heads):  # rotary embeddings rotate the channels of a head in pairs
        problem = f"--dim {options['dim']} is not a multiple of 2 x --heads {heads}"
        yield _fault(problem, f"--dim {multiple(options['dim'], 2 * heads)}")


def _batch(options: Mapping[str, int], data_parallel: int) -> Iterator[Fault]:
    batch, accumulate = options.get("batch_size", 0), options.get("accumulate", 1)
    if batch % (data_parallel * accumulate):
        shares = f"{data_parallel} data parallel ranks x {accumulate} accumulation steps"
        problem = f"--batch-size {batch} cannot be shared out evenly over {shares}"
        yield _fault(problem, f"--batch-size {multiple(batch, data_parallel * accumulate)}")


def _missing_companions(options: Mapping[str, int]) -> Iterator[Fault]:
    """Options that work only together with another option."""
    if options.get("sequence_parallel") and options["tp"] == 1:
        yield _fault("--sequence-parallel needs tensor parallelism", "--tp 2")
    for name, on in (("sequence_parallel", options.get("sequence_parallel")), ("cp", options.get("cp", 1) > 1)):
        if on and not options["transformer_engine"]:
            problem = f"{_option(name)} needs --transformer-engine: megatron.core's own layers cannot do it"
            yield _fault(problem, "--transformer-engine")
