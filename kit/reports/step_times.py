"""Step times of all ranks over time, from the monitors' files: ranks x time slices."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kit.files import untrusted_files
from kit.files.json_lines import is_usable_number
from kit.schema.run_paths import RunPaths

_FILE = re.compile(r"slurm-[0-9]+\.(?P<node>.+)\.progress")
# _MOST_BYTES: read at most this much from the end of each node's file. STRETCHES: number of time slices.
_MOST_BYTES = 8 << 20
STRETCHES = 100
# Use this many lines of a node's file, evenly spaced: three for each time slice.
_LOOKS = 300
# A look says what the steps since the look before took. After more than this many usual gaps without one, nothing is known of them.
_MOST_GAPS = 2


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Step times of a run. rows: a rank's name -> seconds of a step in each time slice; None without a report.

    start: of the first slice, and length of a slice, in seconds.
    """

    start: float
    length: float
    rows: dict[str, list[float | None]]


def read_step_times(run_dir: Path) -> StepTimes | None:
    """Read the step times of a run; None if no rank has reported a step."""
    looks: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for path in sorted(RunPaths(run_dir).monitor.glob("slurm-*.progress")):
        if not _FILE.fullmatch(path.name):
            continue
        try:
            lines = untrusted_files.tail(path, _MOST_BYTES).decode(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines[:: max(1, len(lines) // _LOOKS)]:
            _parse_line(line, looks)
    times = [at for points in looks.values() for at, _ in points]
    if not times:
        return None
    start, end = min(times), max(times)
    length, covers = max(1.0, (end - start) / STRETCHES), _MOST_GAPS * _usual_gap(looks.values())
    rows = {}
    for (role, rank), points in sorted(looks.items()):
        row: list[list[float]] = [[] for _ in range(math.ceil((end - start) / length) + 1)]
        before: float | None = None
        for at, took in sorted(points):
            last = int((at - start) / length)
            known = last if before is None else int((max(before, at - covers) - start) / length) + 1
            for cell in row[min(known, last) : last + 1]:
                cell.append(took)
            before = at
        rows[f"{role}/{rank}" if role else str(rank)] = [sum(cell) / len(cell) if cell else None for cell in row]
    return StepTimes(start=start, length=length, rows=rows)


def _usual_gap(looks: Iterable[Sequence[tuple[float, float]]]) -> float:
    """Seconds between two looks of a rank."""
    return median([late[0] - early[0] for points in looks for early, late in itertools.pairwise(points)] or [0.0])


def _parse_line(line: str, looks: dict[tuple[str, int], list[tuple[float, float]]]) -> None:
    """Parse a line of rank_progress::look. Truncated reports are ignored."""
    looked, *reports = line.split("\t")
    for report in reports:
        words = report.split(" ")
        try:
            role, _, rank = words[0].rpartition("@")
            took, every = float(words[4]), int(words[5])
            if every and is_usable_number(words[4]) and is_usable_number(looked):
                looks.setdefault((role, int(rank)), []).append((float(looked), took))
        except (ValueError, IndexError):
            continue
