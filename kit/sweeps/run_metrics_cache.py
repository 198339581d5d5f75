"""Caches the final metrics of each run, so that results of thousands of points need not read all files again.

It is only a cache, like the run index: one file for each sweep in the user's cache folder. An entry is valid while inode, size and
time of the run's metrics.jsonl are unchanged. A run that reported nothing has no such file: what its log and trackers say is kept
once the run has ended.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from pydantic_core import from_json, to_json

from kit.files import json_lines, untrusted_files
from kit.observed.metric_names import standard
from kit.observed.run_figures import SOURCE
from kit.record import cache_files, metrics, run_facts
from kit.schema.run_paths import RunPaths

Reduce = Literal["last", "min", "max"]

_PLACES: dict[Reduce, int] = {"last": 0, "min": 1, "max": 2}
# Keys of a metrics record that say nothing about the training.
_NOT_METRICS = {"restart"}
_MOST_SOURCES = 8
_NUMBERS = {int, float}
# Version of the file's form. With another number, everything is read again.
_FORM = 2
_EVENTS = RunPaths(Path()).events


@dataclass(frozen=True)
class RunNumbers:
    """The numbers of one run by metric, and their sources: empty for a run whose program reported them."""

    values: dict[str, float]
    sources: tuple[str, ...] = ()


def read_run_numbers(points: Path, names: Sequence[str], *, reduce: Reduce = "last") -> dict[str, RunNumbers]:
    """The numbers of these runs, by the run's name. points: the folder of the runs."""
    cache_path = _place(points)
    known, now = _load(cache_path), dict[str, Any]()
    at, by_run = _PLACES[reduce], {}
    for name in names:
        seen = _signature(f"{points}/{name}/metrics.jsonl") or _signature_of_ended(f"{points}/{name}")
        entry = known.get(name)
        if entry is None or entry[0] != seen:
            entry = [seen, *_summary(f"{points}/{name}")]
        if seen is not None:
            # The numbers of replica groups, which have a file each, are cached when the run has ended, too.
            now[name] = entry
        values = {metric: numbers[at] for metric, numbers in entry[1].items()}
        by_run[name] = RunNumbers(values, tuple(entry[2]))
    if now != known:
        _store(cache_path, now)
    return by_run


def same_metric(metric: str, names: Iterable[str]) -> str:
    """The metric among `names` that is meant by a name: itself, or the kit's name for what others call `eval/loss`."""
    known = {*names}
    return standard(metric) if metric not in known and standard(metric) in known else metric


def metrics_of(run_dir: Path, *, reduce: Reduce = "last") -> dict[str, float]:
    """The numbers that a run reported, by name."""
    return {name: values[_PLACES[reduce]] for name, values in _summary(str(run_dir))[0].items()}


def _summary(run_dir: str) -> tuple[dict[str, list[float]], list[str]]:
    """The last, least and greatest value of each metric, as min() and max() define them; and where they are from."""
    # The record of the start describes the run; it is not a result.
    kept = [record for record in metrics.records(run_dir) if record.get("kind") != "start"]
    summary = {}
    for name, values in _columns(kept):
        if name in _NOT_METRICS:
            continue
        numbers = values if _NUMBERS.issuperset(map(type, values)) else [one for one in values if type(one) in _NUMBERS]
        if numbers:
            summary[name] = [numbers[-1], min(numbers), max(numbers)]
    sources = dict.fromkeys(str(one[SOURCE]) for one in kept if SOURCE in one)
    return summary, [*sources][:_MOST_SOURCES]


def _columns(records: Sequence[json_lines.Record]) -> Iterable[tuple[str, Sequence[Any]]]:
    """The values of each key, in the order of the records; None may stand for a record without the key.

    Most records of one program have the same keys. These are transposed in one call, which takes a third of the time.
    """
    if not records:
        return ()
    names = list(records[0])
    if len(names) > 1 and all(len(record) == len(names) for record in records):
        with contextlib.suppress(KeyError):
            return zip(names, zip(*map(itemgetter(*names), records), strict=True), strict=True)
    names = list(dict.fromkeys(name for record in records for name in record))
    return ((name, [record.get(name) for record in records]) for name in names)


def _signature(path: str) -> list[int] | None:
    try:
        one = os.stat(path)  # noqa: PTH116 - of 10,000 paths
    except OSError:
        return None
    return [one.st_ino, one.st_size, one.st_mtime_ns]


def _signature_of_ended(run_dir: str) -> list[int] | None:
    """The signature of a run that has ended: of its events, to which the next start of the run adds."""
    seen = _signature(f"{run_dir}/{_EVENTS}")
    return seen if seen is not None and run_facts.is_closed(Path(run_dir)) else None


def _place(points: Path) -> Path:
    return cache_files.place("results", points.absolute())


def _load(cache_path: Path) -> dict[str, Any]:
    try:
        table = from_json(untrusted_files.read_bytes(cache_path))
        entries = table["runs"] if table["form"] == _FORM else {}
        return {name: one for name, one in entries.items() if _is_entry(one)}
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}


def _is_entry(one: Any) -> bool:
    return (
        len(one) == 3
        and all(len(values) == len(_PLACES) for values in one[1].values())
        and all(isinstance(text, str) for text in one[2])
    )


def _store(cache_path: Path, entries: dict[str, Any]) -> None:
    cache_files.write(cache_path, to_json({"form": _FORM, "runs": entries}, inf_nan_mode="constants").decode())
