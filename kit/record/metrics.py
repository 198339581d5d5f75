"""Reads the metrics of a run: JSON lines in metrics.jsonl, or in one file for each replica group.

If the program reported none, they come from what it wrote for others (kit/observed), and each record names its source. All parts
of the kit use this module for reading metrics. The kit's own programs write the schema of kit/schema/metrics.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kit.files import json_lines, untrusted_files
from kit.files.json_lines import Record
from kit.observed import run_figures
from kit.schema.run_paths import RunPaths

# As kit.schema.run_paths has it.
_NAME = RunPaths(Path()).metrics.name
# Enough to contain the last record of an average. There is at most one such record in H steps.
_TAIL_BYTES = 1 << 17
# A million steps with five numbers each.
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Quorum:
    """The replica groups at their last average. step: inner steps that are in the global parameters."""

    quorum_id: int
    groups: tuple[int, ...]
    averaged: int
    outer_step: int
    step: int
    time: str

    def __str__(self) -> str:
        named = " ".join(map(str, self.groups))
        return (
            f"{len(self.groups)} groups ({named}), id {self.quorum_id}, outer step {self.outer_step}, step {self.step}"
        )


@dataclass(frozen=True, kw_only=True)
class Latest:
    """The progress of a program: its last step, and the newest value of each number reported with a step.

    time: of the last record. source: where the numbers are from; empty if the program reported them.
    """

    step: int
    time: str
    values: dict[str, float]
    source: str = ""

    def __str__(self) -> str:
        parts = [f"step {self.step}"]
        named = {"loss": "loss", "eval_loss": "validation loss"}
        parts += [f"{name} {self.values[key]:.4f}" for key, name in named.items() if key in self.values]
        rates = {"tokens_per_second": "tokens/s", "images_per_second": "images/s"}
        parts += [f"{self.values[key]:,.0f} {name}" for key, name in rates.items() if key in self.values]
        parts += [f"MFU {self.values['mfu']:.1%}"] if "mfu" in self.values else []
        return ", ".join(parts) + (f" (from {self.source})" if self.source else "")


def files(run_dir: Path) -> list[Path]:
    """The run's metrics.jsonl, or one file for each replica group."""
    own = RunPaths(run_dir).metrics
    return [own] if own.exists() else sorted(run_dir.glob(f"replica-*/{own.name}"))


def records(run_dir: Path | str) -> list[Record]:
    """All records; those of several groups in the order of their times. Truncated lines are skipped."""
    try:
        # Try to read the usual file first, by a name that is text: checking whether it exists, or making a path, takes too long
        # for 10,000 runs.
        groups = [json_lines.parse_records(untrusted_files.read_bytes(f"{run_dir}/{_NAME}", most=_MOST_BYTES))]
    except FileNotFoundError:
        groups = [
            json_lines.parse_records(untrusted_files.read_bytes(path, most=_MOST_BYTES))
            for path in files(Path(run_dir))
        ]
    if not any(groups):
        return run_figures.records(run_dir)
    if len(groups) == 1:
        return groups[0]
    return sorted((record for group in groups for record in group), key=lambda record: str(record.get("time", "")))


def latest(run_dir: Path) -> Latest | None:
    """The furthest step that the program, or any replica group, reported, or that its log shows. None if there is none."""
    reported = max(filter(None, map(_latest_of, files(run_dir))), key=lambda one: (one.step, one.time), default=None)
    return reported or _observed(run_dir)


def _observed(run_dir: Path) -> Latest | None:
    """What the program's own log and trackers say."""
    figures = run_figures.latest(run_dir)
    if not figures:
        return None
    values: dict[str, float] = {}
    sources = [figures[0].source]
    for one in figures:
        own: dict[str, float] = {}
        for record in one.records(run_figures.SOURCE):
            own |= {name: value for name, value in record.items() if name not in {"step", run_figures.SOURCE}}
        if one is not figures[0] and "loss" in own.keys() - values.keys():
            sources.append(f"loss from {one.source}")
        values = {**own, **values}
    return Latest(step=figures[0].last_step, time=figures[0].when, values=values, source="; ".join(sources))


def _latest_of(path: Path) -> Latest | None:
    newest: Latest | None = None
    values: dict[str, float] = {}
    for record in _tail(path):
        step, time = record.get("step"), record.get("time", "")
        if not isinstance(step, int) or isinstance(step, bool) or not isinstance(time, str):
            continue
        if newest is not None and step < newest.step:  # the program continued from a checkpoint before the last step
            values = {}
        values |= {
            name: value
            for name, value in record.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and name not in {"step", "restart"}
        }
        newest = Latest(step=step, time=time, values=dict(values))
    return newest


def quorum(run_dir: Path) -> Quorum | None:
    """The furthest average that any replica group recorded; None if there is none."""
    averages = [one for path in files(run_dir) for record in _tail(path) if (one := _quorum_of(record))]
    return max(averages, key=lambda one: (one.outer_step, one.time), default=None)


def _quorum_of(record: Record) -> Quorum | None:
    """The average in one record; None if it has none, or not all of it."""
    names = ("quorum_id", "averaged", "outer_step", "step")
    numbers = [number for name in names if type(number := record.get(name)) is int]
    groups, time = record.get("groups"), record.get("time")
    if record.get("kind") != "outer" or not isinstance(groups, list) or not isinstance(time, str):
        return None
    if len(numbers) < len(names) or not all(type(group) is int for group in groups):
        return None
    quorum_id, averaged, outer_step, step = numbers
    return Quorum(
        quorum_id=quorum_id, groups=tuple(groups), averaged=averaged, outer_step=outer_step, step=step, time=time
    )


def _tail(path: Path) -> list[Record]:
    """The last records of a file."""
    return json_lines.parse_records(untrusted_files.tail(path, _TAIL_BYTES))
