"""Results of a sweep: one row for each point, with the metrics that its run wrote as JSON lines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kit.errors import ConfigError, Fault, RunError, UsageError, did_you_mean, nearest
from kit.hosts.host import Queue
from kit.hosts.status import Status
from kit.record import garbage
from kit.schema.metric_goals import Goal, goal_of
from kit.schema.sweep import Value
from kit.schema.wrong_value_messages import shown
from kit.sweeps import find, run_metrics_cache
from kit.sweeps.find import state_of
from kit.sweeps.points.key_names import short_names
from kit.sweeps.record import SweepPaths, SweepRecord, read_sweep
from kit.sweeps.run_metrics_cache import Reduce, RunNumbers
from kit.sweeps.search import search_trials

# The state of a point that a search has stopped early because it was bad.
STOPPED = "STOPPED"
_DONE = "COMPLETED"


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """One point. values: by key. metrics: by name; empty if the run wrote none. sources: where they are from, if
    the program did not report them. code: hash of its snapshot; none for a point without a run, or with [workspace] live.
    """

    index: int
    name: str
    values: Mapping[str, Value]
    state: str
    metrics: Mapping[str, float]
    run_dir: Path
    sources: tuple[str, ...] = ()
    code: str | None = None


@dataclass(frozen=True, kw_only=True)
class Results:
    """The rows of a sweep; the best come first if there is a metric. keys: swept keys, in the file's order."""

    sweep_id: str
    rows: tuple[PointResult, ...]
    keys: tuple[str, ...]
    metrics: tuple[str, ...]
    metric: str | None
    goal: Goal
    objectives: Mapping[str, Goal] = field(default_factory=dict)

    @property
    def front(self) -> tuple[PointResult, ...]:
        """The Pareto front of a search for several objectives, in the order of the rows."""
        if len(self.objectives) < 2:
            return ()
        costs = [(row, cost) for row in self.rows if row.state == _DONE and (cost := self._cost(row)) is not None]
        return tuple(row for row, cost in costs if not any(_beats(other, cost) for _, other in costs))

    def _cost(self, row: PointResult) -> tuple[float, ...] | None:
        """The objectives as costs, where less is better; None if one is missing or not a number."""
        found = [
            row.metrics.get(name, math.nan) * (1 if goal == "min" else -1) for name, goal in self.objectives.items()
        ]
        return tuple(found) if not any(map(math.isnan, found)) else None

    @property
    def best(self) -> PointResult | None:
        """The completed point with the best metric; None if none has it, or all have diverged."""
        return next((row for row in self.rows if row.state == _DONE and self._has_figure(row)), None)

    @property
    def better_but_not_done(self) -> tuple[PointResult, ...]:
        """Points with a better metric than the best that have not completed: their figure may be of the middle of a run. Points
        that a search has stopped are left out.
        """
        best, rows = self.best, []
        for row in self.rows:
            if row is best or not self._has_figure(row):
                break
            if row.state not in {_DONE, STOPPED}:
                rows.append(row)
        return tuple(rows)

    @property
    def sources(self) -> Mapping[str, int]:
        """Where numbers are from that the programs did not report -> number of points."""
        return Counter(source for row in self.rows for source in row.sources)

    @property
    def codes(self) -> Mapping[str, tuple[int, ...]]:
        """Snapshot -> the points that ran it. `kit sweep --retry` after a change of the code gives more than one."""
        found: dict[str, list[int]] = {}
        for row in sorted(self.rows, key=lambda row: row.index):
            if row.code:
                found.setdefault(row.code, []).append(row.index)
        return {code: tuple(points) for code, points in found.items()}

    @property
    def without_result(self) -> Mapping[str, int]:
        """State -> number of points that wrote no metric of this name; empty if no metric is asked for."""
        if self.metric is None:
            return {}
        return Counter(row.state for row in self.rows if self.metric not in row.metrics)

    def _has_figure(self, row: PointResult) -> bool:
        return self.metric is not None and not math.isnan(row.metrics.get(self.metric, math.nan))

    def key(self, name: str) -> str:
        """The swept key for a name: the key itself or its short name. ConfigError if there is none."""
        short = short_names(self.keys)
        matches = [key for key in self.keys if name in {key, short[key]}]
        if not matches:
            near = nearest(name, short.values()) or next(iter(short.values()), None)
            problem = f"{shown(name)} is not a key of this sweep"
            hint = f"--x {near}" if near else "kit results, which shows the keys of a sweep"
            raise ConfigError.of(Fault(key="--x", problem=problem, allowed=", ".join(short.values()), hint=hint))
        return matches[0]

    def headings(self) -> dict[str, str]:
        """Metric -> its column: `metrics.lr` if a swept key is also called lr."""
        taken = {"point", "name", "state", "run_dir", *short_names(self.keys).values()}
        return {name: f"metrics.{name}" if name in taken else name for name in self.metrics}

    def as_tables(self) -> list[dict[str, object]]:
        """Each row as one flat table, for files."""
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


@garbage.paused()
def gather(
    folder: Path, *, queue: Queue, metric: str | None = None, goal: Goal | None = None, reduce: Reduce = "last"
) -> Results:
    """Read every point's metrics. RunError when no point wrote the requested metric.

    metric, goal: by default those of the sweep. reduce: which value of a metric counts: the last, least or greatest.
    """
    record = read_sweep(folder)
    objectives = record.search.objectives if record.search else {}
    metric = metric or record.metric or next(iter(objectives), None)
    states = find.states(folder, record, queue=queue)
    paths = SweepPaths(folder)
    points = paths.points
    reported = run_metrics_cache.read_run_numbers(
        points, [paths.name(point.index) for point in record.points], reduce=reduce
    )
    # A path is made once for each: that takes longer than to look at what it names.
    if metric is not None:
        reported = {name: _renamed(one, metric) for name, one in reported.items()}
    dirs = {one.run_dir.name: one.run_dir for one in states.values() if one is not None}
    dirs |= {name: points / name for name in reported.keys() - dirs.keys()}
    rows = [
        PointResult(
            index=point.index,
            name=point.name,
            values=point.values if record.search is None else search_trials.suggestion(dirs[name]) or point.values,
            state=_state(states[point.index], dirs[name], searched=record.search is not None),
            metrics=numbers.values,
            run_dir=dirs[name],
            sources=numbers.sources,
            code=run.facts.tree if (run := states[point.index]) else None,
        )
        for point, (name, numbers) in zip(record.points, reported.items(), strict=True)
    ]
    names = tuple(dict.fromkeys(name for row in rows for name in row.metrics))
    if metric is not None and names and metric not in names:
        hint = "; ".join(filter(None, [did_you_mean(metric, names), f"they wrote {', '.join(names)}"]))
        raise RunError(f"{folder.name}: no point wrote {metric!r}", hint=hint)
    goal = goal or _goal(record, metric, objectives)
    if metric is not None:
        names = (metric, *(name for name in names if name != metric)) if names else ()
        rows.sort(key=lambda row: _rank(row.metrics.get(metric), goal))
    keys = tuple(dict.fromkeys(key for row in rows for key in row.values))
    return Results(
        sweep_id=record.sweep_id,
        rows=tuple(rows),
        keys=keys,
        metrics=names,
        metric=metric,
        goal=goal,
        objectives=objectives,
    )


def _renamed(one: RunNumbers, metric: str) -> RunNumbers:
    """The numbers of a run, the wanted one under the name by which it is asked for: a log or a tracker may have another."""
    known = run_metrics_cache.same_metric(metric, one.values)
    if known == metric:
        return one
    return RunNumbers({metric if name == known else name: value for name, value in one.values.items()}, one.sources)


def _goal(record: SweepRecord, metric: str | None, objectives: Mapping[str, Goal]) -> Goal:
    """The sweep's or the search's goal for the metric, or what its name says. UsageError if nothing says it."""
    known = {**objectives, **({record.metric: record.goal} if record.metric else {})}
    if metric is None:
        return record.goal
    found = known.get(metric) or goal_of(metric)
    if found is None:
        problem = f"the name {shown(metric)} does not say whether a small or a large value is better"
        raise UsageError(problem, hint="--goal max if more is better, or --goal min if less is better")
    return found


def _state(one: Status | None, run_dir: Path, *, searched: bool) -> str:
    return STOPPED if searched and search_trials.stopped_file(run_dir).is_file() else state_of(one)


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether one point is as good in all objectives, and better in one."""
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _rank(value: float | None, goal: Goal) -> tuple[int, float]:
    """Sort key: the best first, then diverged runs (NaN), then runs without the metric."""
    if value is None:
        return 2, 0.0
    if math.isnan(value):
        return 1, 0.0
    return 0, value if goal == "min" else -value


def _cell(value: Value | None) -> object:
    return list(value) if isinstance(value, tuple) else value
