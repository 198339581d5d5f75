"""Reads a search's trials from the run folders of its points; there is no other record.

`state/suggestion.json` has a point's values from the moment they are chosen. Its metrics and events give the rest.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kit.files import atomic_write, untrusted_files
from kit.record import metrics, run_facts
from kit.schema.run_paths import RunPaths
from kit.schema.sweep import Value
from kit.sweeps.run_metrics_cache import same_metric

# waiting: without values. running: with values, not ended. complete: with a number for each objective. pruned: stopped early or
# diverged. failed: ended without a number.
State = Literal["waiting", "running", "complete", "pruned", "failed"]


@dataclass(frozen=True, kw_only=True)
class SearchTrial:
    """One point.

    values: those chosen for it. reached: its objectives, if it is complete. steps: metric by step, of a pruned point.
    """

    index: int
    state: State
    values: Mapping[str, Value]
    reached: tuple[float, ...] = ()
    steps: Mapping[int, float] = field(default_factory=dict)


def suggestion_file(run_dir: Path) -> Path:
    """The file with a point's values, after they are chosen."""
    return RunPaths(run_dir).state / "suggestion.json"


def stopped_file(run_dir: Path) -> Path:
    """The file which records that a point was stopped early, with step and reason."""
    return RunPaths(run_dir).state / "stopped-early.json"


def suggestion(run_dir: Path) -> dict[str, Value] | None:
    """The values that were chosen for a point; None if there are none, or if the file is damaged."""
    try:
        found = json.loads(untrusted_files.read_bytes(suggestion_file(run_dir)))["values"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    return {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}


def suggest(run_dir: Path, values: Mapping[str, Value]) -> None:
    """Record the values durably, before they change any other file. OSError when the disk refuses."""
    RunPaths(run_dir).state.mkdir(exist_ok=True)
    atomic_write.write(suggestion_file(run_dir), json.dumps({"values": values}) + "\n")


def read_trial(run_dir: Path, index: int, objectives: Sequence[str]) -> SearchTrial:
    """One point. objectives: the metrics of the search."""
    values = suggestion(run_dir)
    if values is None:
        return SearchTrial(index=index, state="waiting", values={})
    if stopped_file(run_dir).is_file():
        return SearchTrial(index=index, state="pruned", values=values, steps=reports(run_dir, objectives[0]))
    last = next(reversed(run_facts.events(run_dir)), {})
    if last.get("event") != "end":
        return SearchTrial(index=index, state="running", values=values)
    reached = _reached(run_dir, objectives)
    if len(reached) < len(objectives):
        return SearchTrial(index=index, state="failed", values=values)
    # A diverged run shows that its values are bad, so it counts as pruned.
    state: State = "complete" if all(map(math.isfinite, reached)) else "pruned"
    return SearchTrial(index=index, state=state, values=values, reached=reached)


def reports(run_dir: Path, metric: str) -> dict[int, float]:
    """A metric by the step that it was reported with."""
    records = metrics.records(run_dir)
    name = same_metric(metric, (key for record in records for key in record))
    return {
        record["step"]: float(record[name])
        for record in records
        if _is_number(record.get(name)) and isinstance(record.get("step"), int)
    }


def _reached(run_dir: Path, objectives: Sequence[str]) -> tuple[float, ...]:
    """The last value of each objective; fewer values if one was never reported."""
    last: dict[str, float] = {}
    records = metrics.records(run_dir)
    known = {*itertools.chain.from_iterable(records)}
    written = {name: same_metric(name, known) for name in objectives}
    for record in records:
        last |= {name: float(record[key]) for name, key in written.items() if _is_number(record.get(key))}
    return tuple(last[name] for name in objectives if name in last)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
