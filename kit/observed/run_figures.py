"""A run's progress and metrics from what its program writes for others, for a program that reports nothing to the kit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from kit.files import json_lines, untrusted_files
from kit.files.json_lines import Record
from kit.schema.run_paths import RunPaths

if TYPE_CHECKING:
    from kit.observed.figures import Figures

# A key of the records that come from here: it says where their numbers are from.
SOURCE = "_source"

_STEP = "step"
# Before any file of a tracker was written: clocks differ, and the first event of a run is older than its program.
_EARLY_S = 60.0
_EVENT_BYTES = 4096


def records(run_dir: Path | str) -> list[Record]:
    """The figures in the form of metrics.jsonl, each with its source; empty if there are none.

    A metric that several sources have comes from the first of: TensorBoard, W&B, metrics.csv, trainer_state.json, the log.
    """
    rows: list[Record] = []
    taken: set[str] = {_STEP, SOURCE}
    figures = [*_figures(Path(run_dir), whole=True)]
    for _, group in groupby(figures, key=lambda file: file.source.partition(",")[0]):
        own = [record for file in group for record in file.records(SOURCE)]
        names = {name for record in own for name in record} - taken
        rows += [record for file in own if (record := _of_names(file, names)).keys() & names]
        taken |= names
    # A log with steps alone tells where the run is.
    return rows or [record for file in figures for record in file.records(SOURCE)]


def latest(run_dir: Path) -> list[Figures]:
    """The sources as they are now, that with the furthest step first. Of a log only the end is read."""
    return sorted(_figures(run_dir, whole=False), key=lambda one: -one.last_step)


def _of_names(record: Record, names: set[str]) -> Record:
    return {name: value for name, value in record.items() if name in names or name in {_STEP, SOURCE}}


def _figures(run_dir: Path, *, whole: bool) -> Iterator[Figures]:
    """The figures of each file, those of one tracker after another, older files first."""
    # A point of a sweep that has not begun has no logs; there may be thousands.
    if not os.path.isdir(f"{run_dir}/{RunPaths(Path()).logs}"):  # noqa: PTH112 - making a path takes longer
        return
    from kit.observed import run_log, tracker_files

    yield from tracker_files.read_trackers(run_dir, since=_first_start(run_dir) - _EARLY_S)
    log = run_log.read_log(run_dir, whole=whole)
    if log is not None:
        yield log


def _first_start(run_dir: Path) -> float:
    """Seconds since the epoch; 0 if it is not known. Older files in the workspace were submitted with it."""
    try:
        with untrusted_files.open_regular(RunPaths(run_dir).events) as source:
            first = next(iter(json_lines.parse_records(source.read(_EVENT_BYTES).rpartition(b"\n")[0])), {})
    except OSError:
        return 0.0
    return float(str(first["epoch"])) if json_lines.is_usable_number(first.get("epoch")) else 0.0
