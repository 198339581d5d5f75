"""Caches the final metrics of each run, so that results of thousands of points do not read all files again.

A cache and nothing more, like the run index: one file for each sweep in the user's own cache folder. An entry counts while inode,
size and time of the run's metrics.jsonl are as they were.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic_core import from_json, to_json

from kit import untrusted_files
from kit.runs import atomic_write, metrics

Reduce = Literal["last", "min", "max"]

_PLACES: dict[Reduce, int] = {"last": 0, "min": 1, "max": 2}
# Keys of a metrics record that say when it was written, and nothing about the training.
_NOT_METRICS = {"restart"}
_NUMBERS = {int, float}
# Of the file's own form: another number, and all is read anew.
_FORM = 1


def of(points: Path, names: Sequence[str], *, reduce: Reduce = "last") -> dict[str, dict[str, float]]:
    """The numbers that each of these runs reported, by its name and theirs. points: the folder of the runs."""
    place = _place(points)
    known, now = _load(place), dict[str, Any]()
    at, found = _PLACES[reduce], {}
    for name in names:
        seen = _signature(f"{points}/{name}/metrics.jsonl")
        entry = known.get(name)
        if entry is None or entry[0] != seen:
            entry = [seen, _summary(f"{points}/{name}")]
        if seen is not None:
            # Of replica groups, which have a file each, nothing is kept.
            now[name] = entry
        found[name] = {metric: values[at] for metric, values in entry[1].items()}
    if now != known:
        _store(place, now)
    return found


def metrics_of(run_dir: Path, *, reduce: Reduce = "last") -> dict[str, float]:
    """The numbers that a run reported, by name."""
    return {name: values[_PLACES[reduce]] for name, values in _summary(str(run_dir)).items()}


def _summary(run_dir: str) -> dict[str, list[float]]:
    """Of each metric its last, least and greatest value, as min() and max() have them."""
    # What a run is, is not what it came to.
    kept = [record for record in metrics.records(run_dir) if record.get("kind") != "start"]
    found = {}
    for name, values in _columns(kept):
        if name in _NOT_METRICS:
            continue
        numbers = values if _NUMBERS.issuperset(map(type, values)) else [one for one in values if type(one) in _NUMBERS]
        if numbers:
            found[name] = [numbers[-1], min(numbers), max(numbers)]
    return found


def _columns(records: Sequence[metrics.Record]) -> Iterable[tuple[str, Sequence[Any]]]:
    """The values of each key, in the order of the records; None may stand for a record without the key.

    Records of one program mostly have the same keys. Such are turned round all at once, in a third of the time.
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


def _place(points: Path) -> Path:
    name = hashlib.sha256(str(points.absolute()).encode(errors="surrogateescape")).hexdigest()[:16]
    return platformdirs.user_cache_path("kit") / f"results-{name}.json"


def _load(place: Path) -> dict[str, Any]:
    try:
        table = from_json(untrusted_files.read_bytes(place))
        entries = table["runs"] if table["form"] == _FORM else {}
        return {name: one for name, one in entries.items() if _is_entry(one)}
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}


def _is_entry(one: Any) -> bool:
    return len(one) == 2 and all(len(values) == len(_PLACES) for values in one[1].values())


def _store(place: Path, entries: dict[str, Any]) -> None:
    # What cannot be kept (a full disk, a home that is read-only) is read again the next time.
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = to_json({"form": _FORM, "runs": entries}, inf_nan_mode="constants").decode()
        atomic_write.write(place, text, durable=False, mode=0o600)
