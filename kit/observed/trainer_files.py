"""Reads the tables that trainers write beside a run: Lightning's metrics.csv, and trainer_state.json of Transformers' Trainer."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from pathlib import Path

from kit.files import untrusted_files
from kit.observed.figures import Figures, Points
from kit.observed.log_line import number

_MOST_STATE = 32 << 20
_HEAD_BYTES, _MOST_CSV = 64 << 10, 8 << 20
_NOT_METRICS = frozenset({"step", "epoch", "total_flos"})


def read_csv(path: Path, *, name: str) -> Figures | None:
    """The rows of a metrics.csv with a column `step`, of a large file those at its end; None if it has none."""
    points = Points()
    try:
        with untrusted_files.open_regular(path) as source:
            seen = os.fstat(source.fileno())
            head = source.read(_HEAD_BYTES).split(b"\n", 1)[0]
        text = untrusted_files.tail(path, _MOST_CSV).partition(b"\n")[2]
        columns = next(csv.reader([head.decode(errors="replace")]), [])
        for row in csv.reader(text.decode(errors="replace").replace("\0", "").splitlines()):
            _add(dict(zip(columns, row, strict=False)), points)
    except (OSError, csv.Error):
        return None
    found = points.take()
    return Figures(source=f"Lightning, {name}", path=path, time=seen.st_mtime, points=found) if found else None


def read_trainer_state(path: Path, *, name: str) -> Figures | None:
    """The history in a trainer_state.json, which is as old as its checkpoint; None if it has none."""
    points = Points()
    try:
        history = json.loads(untrusted_files.read_bytes(path, most=_MOST_STATE))["log_history"]
        for record in history:
            _add(record, points)
        changed = path.stat().st_mtime
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    found = points.take()
    return Figures(source=f"Transformers, {name}", path=path, time=changed, points=found) if found else None


def _add(record: Mapping[str, object], points: Points) -> None:
    step = number(record.get("step"))
    values = {
        key: found for key, value in record.items() if key not in _NOT_METRICS and (found := number(value)) is not None
    }
    if step is not None and step.is_integer() and values:
        # Lightning counts steps from 0, and writes the row of a step after it: as in its own charts.
        points.add(int(step), values)
