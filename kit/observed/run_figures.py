"""A run's progress and metrics from what its program writes for others, for a program that reports nothing to the kit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from kit.json_lines import Record
from kit.spec.run_paths import RunPaths

if TYPE_CHECKING:
    from kit.observed.figures import Figures


# A key of the records that come from here: it says where their numbers are from.
SOURCE = "_source"


def records(run_dir: Path | str) -> list[Record]:
    """The figures in the form of metrics.jsonl, each with its source; empty if there are none."""
    found = _figures(Path(run_dir), whole=True)
    return [record for one in found for record in one.records(SOURCE)]


def latest(run_dir: Path) -> Figures | None:
    """The source with the furthest step, of its end only; None if there is none."""
    return max(_figures(run_dir, whole=False), key=lambda one: one.last_step, default=None)


def _figures(run_dir: Path, *, whole: bool) -> list[Figures]:
    """The figures of each source."""
    # A point of a sweep that has not begun has no logs; there may be thousands.
    if not os.path.isdir(f"{run_dir}/{RunPaths(Path()).logs}"):  # noqa: PTH112 - making a path takes longer
        return []
    from kit.observed import run_log

    log = run_log.read(run_dir, whole=whole)
    return [log] if log else []
