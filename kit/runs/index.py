"""The run index: a cache of the facts of thousands of run folders, so that listing them need not read them again.

There is one file in the user's cache folder for each folder of runs. It may be deleted at any time. Two login nodes may write it at
once: each renames its own complete file to the name, and the last one wins. An entry is valid while inode, size and time of the
run's manifest and events are unchanged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from kit import untrusted_files
from kit.runs import cache_files, run_facts
from kit.runs.run_facts import Facts

# In this folder a sweep keeps the run folders of its points.
POINTS = "points"

# Version of the file's form and of the fields of Facts. With another number, everything is read again.
_FORM = 1
# About 1,500 runs. Reading a larger index takes longer than importing the code that reads a manifest.
_SMALL_BYTES = 1 << 20
# The signature of a folder that may not be read.
_HIDDEN = (-1, 0, 0)
_NAMES = tuple(field.name for field in fields(Facts))
_TUPLES = ("links", "started")
# One of these files is left of a half-deleted run, which still counts as a run.
_MARKS = ("manifest.json", "job.toml", "batch.sh", "state", "logs")

_Entry = list[Any]


def runs(folder: Path) -> list[tuple[Path, Facts]]:
    """Every run in a folder of runs, including points of sweeps, in no order."""
    if not folder.is_dir():
        return []
    place = _place(folder)
    known, now = _load(place), dict[str, _Entry]()
    found = []
    for path, seen in _run_dirs(str(folder)):
        one, entry = _read(path, seen, known.get(path))
        if not one.problem:
            # Read it again next time: a change of permissions does not change its times.
            now[path] = entry
        found.append((Path(path), one))
    if now != known:
        _store(place, now)
    return found


def facts(run_dirs: Sequence[Path]) -> list[tuple[Path, Facts]]:
    """The facts of some run folders, each with its path. A manifest that the index has already is not read again."""
    loaded: dict[Path, tuple[dict[str, _Entry], dict[str, _Entry]]] = {}
    found = []
    for run_dir in run_dirs:
        path, folder = str(run_dir), _folder_of(run_dir)
        if folder not in loaded:
            known = _load(_place(folder)) if _is_small(_place(folder)) else {}
            loaded[folder] = known, dict(known)
        seen = _signature(path)
        if seen is None:
            found.append((run_dir, run_facts.read(run_dir)))
            continue
        known, now = loaded[folder]
        one, entry = _read(path, seen, known.get(path))
        if not one.problem:
            now[path] = entry
        found.append((run_dir, one))
    for folder, (known, now) in loaded.items():
        if now != known and _is_small(_place(folder)):
            _store(_place(folder), now)
    return found


def _folder_of(run_dir: Path) -> Path:
    """The folder of runs that contains a run. A sweep's point is two levels deeper."""
    return run_dir.parent.parent.parent if run_dir.parent.name == POINTS else run_dir.parent


def _is_small(place: Path) -> bool:
    """Whether an index takes less time to read than a manifest. A missing index is small."""
    try:
        return place.stat().st_size < _SMALL_BYTES
    except OSError:
        return True


def _read(path: str, seen: list[int], entry: _Entry | None) -> tuple[Facts, _Entry]:
    """The facts of a run folder, and its entry for the index. entry: its present entry in the index."""
    if entry is not None and entry[0] == seen:
        return _facts(entry[1]), entry
    if entry is not None and entry[0][:3] == seen[:3] and seen[0] > 0:
        # During a run, its events grow and its manifest does not change.
        one = run_facts.with_events(_facts(entry[1]), Path(path))
    else:
        one = run_facts.read(Path(path))
    return one, [seen, [getattr(one, name) for name in _NAMES]]


def is_run(path: Path) -> bool:
    """Whether a folder is a run's, or the rest of one."""
    return _signature(str(path)) is not None


def run_dirs(folder: Path) -> Iterator[Path]:
    """The same folders as in `runs`, without reading their files."""
    return (Path(path) for path, _ in _run_dirs(str(folder)))


def _run_dirs(folder: str) -> Iterator[tuple[str, list[int]]]:
    """Each run folder with its signature. Paths are text: creating 10,000 Path objects takes longer than the checks."""
    for path in _inside(folder):
        seen = _signature(path)
        if seen is not None:
            yield path, seen
        elif os.path.isdir(f"{path}/{POINTS}"):  # noqa: PTH112
            for point in _inside(f"{path}/{POINTS}"):
                seen = _signature(point)
                if seen is not None:
                    yield point, seen


def _inside(folder: str) -> list[str]:
    """The folders in a folder; empty if it may not be read."""
    try:
        with os.scandir(folder) as entries:
            return [one.path for one in entries if not one.name.startswith(".") and one.is_dir()]
    except OSError:
        return []


def _signature(run_dir: str) -> list[int] | None:
    """Inode, size and time of the manifest and the events; None if the folder is not a run's."""
    try:
        made = _stat(f"{run_dir}/manifest.json")
    except PermissionError:
        # A folder of another user, closed to others; it is listed with that reason.
        return [*_HIDDEN, *_HIDDEN]
    if not made[0] and not _is_left(run_dir):
        return None
    return made + _stat(f"{run_dir}/state/events.jsonl")


def _stat(path: str) -> list[int]:
    """Inode, size and time of a file. PermissionError if its folder may not be entered."""
    try:
        one = os.stat(path)  # noqa: PTH116
    except PermissionError:
        raise
    except OSError:
        return [0, 0, 0]
    return [one.st_ino, one.st_size, one.st_mtime_ns]


def _is_left(path: str) -> bool:
    """Whether a folder is the rest of a run. A sweep has no files with these names."""
    return not os.path.lexists(f"{path}/sweep.json") and any(os.path.lexists(f"{path}/{name}") for name in _MARKS)


def _facts(values: list[Any]) -> Facts:
    """The same as `Facts(…)`, three times as fast."""
    one = object.__new__(Facts)
    table = one.__dict__
    table.update(zip(_NAMES, values, strict=True))
    for name in _TUPLES:
        table[name] = tuple(table[name])
    return one


def _place(folder: Path) -> Path:
    return cache_files.place("runs", folder.absolute())


def _load(place: Path) -> dict[str, _Entry]:
    try:
        table = json.loads(untrusted_files.read_bytes(place))
        entries = table["runs"] if table["form"] == [_FORM, *_NAMES] else {}
        return {path: entry for path, entry in entries.items() if len(entry[1]) == len(_NAMES)}
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}


def _store(place: Path, entries: dict[str, _Entry]) -> None:
    # Imported here: a project in which nothing has changed is read without it.
    from pydantic_core import to_json

    cache_files.write(place, to_json({"form": [_FORM, *_NAMES], "runs": entries}, inf_nan_mode="constants").decode())
