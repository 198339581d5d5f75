"""What the points of a sweep came to: the metrics that each run wrote as JSON lines, one row a point."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kit.errors import ConfigError, Fault, RunError, did_you_mean, nearest
from kit.runs import metrics
from kit.runs.status import Queue
from kit.spec.form import shown
from kit.spec.sweep import Value
from kit.sweeps import find
from kit.sweeps.find import state_of
from kit.sweeps.names import short_names
from kit.sweeps.record import SweepPaths, read

Goal = Literal["min", "max"]
Reduce = Literal["last", "min", "max"]

_REDUCE: Mapping[Reduce, Callable[[Sequence[float]], float]] = {"last": lambda v: v[-1], "min": min, "max": max}
# Keys of a metrics record that say when it was written, and nothing about the training.
_NOT_METRICS = {"restart"}


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """One point. values: by key. metrics: by name; empty where the run wrote none."""

    index: int
    name: str
    values: Mapping[str, Value]
    state: str
    metrics: Mapping[str, float]
    run_dir: Path


@dataclass(frozen=True, kw_only=True)
class Results:
    """The rows of a sweep, the best first where there is a metric to tell. keys: swept keys, in the file's order."""

    sweep_id: str
    rows: tuple[PointResult, ...]
    keys: tuple[str, ...]
    metrics: tuple[str, ...]
    metric: str | None
    goal: Goal

    @property
    def best(self) -> PointResult | None:
        """The point with the best metric; None when no point has it, or all have diverged."""
        first = self.rows[0] if self.rows else None
        if first is None or self.metric is None:
            return None
        return None if math.isnan(first.metrics.get(self.metric, math.nan)) else first

    def key(self, name: str) -> str:
        """The swept key that a person calls `name`: the key itself or its short name. ConfigError when there is none."""
        short = short_names(self.keys)
        found = [key for key in self.keys if name in {key, short[key]}]
        if not found:
            near = nearest(name, short.values()) or next(iter(short.values()), None)
            problem = f"{shown(name)} is not a key of this sweep"
            hint = f"--x {near}" if near else "kit results, which shows the keys of a sweep"
            raise ConfigError.of(Fault(key="--x", problem=problem, allowed=", ".join(short.values()), hint=hint))
        return found[0]

    def headings(self) -> dict[str, str]:
        """Metric -> its column: `metrics.lr` where a swept key is called lr too."""
        taken = {"point", "name", "state", "run_dir", *short_names(self.keys).values()}
        return {name: f"metrics.{name}" if name in taken else name for name in self.metrics}

    def as_tables(self) -> list[dict[str, object]]:
        """Each row as one flat table, as files have it."""
        short, headed = short_names(self.keys), self.headings()
        return [
            {
                "point": row.index,
                "name": row.name,
                **{short[key]: _cell(row.values.get(key)) for key in self.keys},
                "state": row.state,
                **{headed[name]: row.metrics.get(name) for name in self.metrics},
                "run_dir": str(row.run_dir),
            }
            for row in self.rows
        ]


def gather(
    folder: Path, *, queue: Queue, metric: str | None = None, goal: Goal | None = None, reduce: Reduce = "last"
) -> Results:
    """Read every point's metrics. RunError when no point wrote the metric that was asked for.

    metric, goal: default: what the sweep says. reduce: which of a metric's values counts: the last, least or greatest.
    """
    record = read(folder)
    metric, goal = metric or record.metric, goal or record.goal
    states = find.states(folder, record, queue=queue)
    paths = SweepPaths(folder)
    rows = [
        PointResult(
            index=point.index,
            name=point.name,
            values=point.values,
            state=state_of(states[point.index]),
            metrics=metrics_of(paths.point(point.index), reduce=reduce),
            run_dir=paths.point(point.index),
        )
        for point in record.points
    ]
    names = tuple(dict.fromkeys(name for row in rows for name in row.metrics))
    if metric is not None and names and metric not in names:
        hint = "; ".join(filter(None, [did_you_mean(metric, names), f"they wrote {', '.join(names)}"]))
        raise RunError(f"{folder.name}: no point wrote {metric!r}", hint=hint)
    if metric is not None:
        names = (metric, *(name for name in names if name != metric)) if names else ()
        rows.sort(key=lambda row: _rank(row.metrics.get(metric), goal))
    keys = tuple(dict.fromkeys(key for row in rows for key in row.values))
    return Results(sweep_id=record.sweep_id, rows=tuple(rows), keys=keys, metrics=names, metric=metric, goal=goal)


def metrics_of(run_dir: Path, *, reduce: Reduce = "last") -> dict[str, float]:
    """The numbers that a run reported, by name."""
    values: dict[str, list[float]] = {}
    for record in metrics.records(run_dir):
        if record.get("kind") == "start":  # what the run is, not what it came to
            continue
        for name, value in record.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and name not in _NOT_METRICS:
                values.setdefault(name, []).append(value)
    return {name: _REDUCE[reduce](found) for name, found in values.items()}


def _rank(value: float | None, goal: Goal) -> tuple[int, float]:
    """Best first; a diverged run (NaN) after all numbers, a run without the metric last."""
    if value is None:
        return 2, 0.0
    if math.isnan(value):
        return 1, 0.0
    return 0, value if goal == "min" else -value


def _cell(value: Value | None) -> object:
    return list(value) if isinstance(value, tuple) else value
