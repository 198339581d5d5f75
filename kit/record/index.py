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

from kit.files import untrusted_files
from kit.record import cache_files, run_facts, unmade_points
from kit.record.run_facts import Facts
from kit.record.unmade_points import POINTS, Unmade

# Version of the file's form and of the fields of Facts. With another number, everything is read again.
_FORM = 2
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
    """Every run in a folder of runs, including points of sweeps, in no order. Also points whose folders are not made yet."""
    if not folder.is_dir() and not _has_points(str(folder.parent)):
        return []
    index_path = _place(folder)
    known, now = _load(index_path), dict[str, _Entry]()
    pairs = []
    templates: dict[str, Facts] = {}
    for path, seen in _run_dirs(str(folder)):
        if isinstance(seen, Unmade):
            pairs.append((Path(path), _of_unmade(seen, templates, known, now)))
            continue
        record, entry = _read(path, seen, known.get(path))
        if not record.problem:
            # Read it again next time: a change of permissions does not change its times.
            now[path] = entry
        pairs.append((Path(path), record))
    if now != known:
        _store(index_path, now)
    return pairs


def facts(run_dirs: Sequence[Path]) -> list[tuple[Path, Facts]]:
    """The facts of some run folders, each with its path. A manifest that the index has already is not read again."""
    loaded: dict[Path, tuple[dict[str, _Entry], dict[str, _Entry]]] = {}
    pairs = []
    for run_dir in run_dirs:
        path, folder = str(run_dir), _folder_of(run_dir)
        if folder not in loaded:
            known = _load(_place(folder)) if _is_small(_place(folder)) else {}
            loaded[folder] = known, dict(known)
        seen = _signature(path)
        known, now = loaded[folder]
        if seen is None:
            unmade = unmade_points.find(run_dir)
            record = run_facts.read_facts(run_dir) if unmade is None else _of_unmade(unmade, {}, known, now)
            pairs.append((run_dir, record))
            continue
        record, entry = _read(path, seen, known.get(path))
        if not record.problem:
            now[path] = entry
        pairs.append((run_dir, record))
    for folder, (known, now) in loaded.items():
        if now != known and _is_small(_place(folder)):
            _store(_place(folder), now)
    return pairs


def _folder_of(run_dir: Path) -> Path:
    """The folder of runs that contains a run. A sweep's point is two levels deeper."""
    return run_dir.parent.parent.parent if run_dir.parent.name == POINTS else run_dir.parent


def _is_small(index_path: Path) -> bool:
    """Whether an index takes less time to read than a manifest. A missing index is small."""
    try:
        return index_path.stat().st_size < _SMALL_BYTES
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
        one = run_facts.read_facts(Path(path))
    return one, [seen, [getattr(one, name) for name in _NAMES]]


def _of_unmade(point: Unmade, templates: dict[str, Facts], known: dict[str, _Entry], now: dict[str, _Entry]) -> Facts:
    """The facts of a point without a folder: those of its template, with its own name and job.

    templates: those that were read already. known, now: the index, as it is and as it will be.
    """
    if point.template not in templates:
        made, entry = _read(point.template, _signature(point.template) or [0] * 6, known.get(point.template))
        if not made.problem:
            now[point.template] = entry
        templates[point.template] = made
    own = object.__new__(Facts)
    own.__dict__.update(templates[point.template].__dict__)
    own.__dict__.update(run_id=os.path.basename(point.run_dir), slurm_id=point.slurm_id)  # noqa: PTH119
    return own


def is_run(path: Path) -> bool:
    """Whether a folder is a run, the remains of one, or a point whose folder is not made yet."""
    return _signature(str(path)) is not None or unmade_points.find(path.absolute()) is not None


def run_dirs(folder: Path) -> Iterator[Path]:
    """The same folders as in `runs`, without reading their files."""
    return (Path(path) for path, _ in _run_dirs(str(folder)))


def _run_dirs(folder: str) -> Iterator[tuple[str, list[int] | Unmade]]:
    """Each run folder with its signature. Paths are text: creating 10,000 Path objects takes longer than the checks."""
    if os.path.basename(folder) == POINTS:  # noqa: PTH119
        yield from _points(os.path.dirname(folder))  # noqa: PTH120
        return
    for path in _inside(folder):
        seen = _signature(path)
        if seen is not None:
            yield path, seen
        elif _has_points(path):
            yield from _points(path)


def _has_points(folder: str) -> bool:
    """Whether a folder is a sweep's. In a mirror, a sweep of which no point has started has no folder of points."""
    return os.path.isdir(f"{folder}/{POINTS}") or os.path.lexists(f"{folder}/sweep.json")  # noqa: PTH112


def _points(sweep: str) -> Iterator[tuple[str, list[int] | Unmade]]:
    """The points of a sweep."""
    # Listed before the folders: a point whose folder is made meanwhile is found as one that has it.
    unmade = [*unmade_points.with_template(sweep)]
    folders = set()
    for point in _inside(f"{sweep}/{POINTS}"):
        seen = _signature(point)
        if seen is not None:
            folders.add(point)
            yield point, seen
    yield from ((one.run_dir, one) for one in unmade if one.run_dir not in folders)


def _inside(folder: str) -> list[str]:
    """The folders in a folder; empty if it may not be read."""
    try:
        with os.scandir(folder) as entries:
            return [one.path for one in entries if not one.name.startswith(".") and _is_folder(one)]
    except OSError:
        return []


def _is_folder(one: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder. A link that leads in a circle, or into a closed folder, is none, and ends no list."""
    try:
        return one.is_dir()
    except OSError:
        return False


def _signature(run_dir: str) -> list[int] | None:
    """Inode, size and time of the manifest and the events; None if the folder is not a run's."""
    try:
        manifest_stat = _stat(f"{run_dir}/manifest.json")
    except PermissionError:
        # A folder of another user, closed to others; it is listed with that reason.
        return [*_HIDDEN, *_HIDDEN]
    if not manifest_stat[0] and not _is_left(run_dir):
        return None
    try:
        return manifest_stat + _stat(f"{run_dir}/state/events.jsonl")
    except PermissionError:
        return [*manifest_stat, *_HIDDEN]


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


def _load(index_path: Path) -> dict[str, _Entry]:
    try:
        table = json.loads(untrusted_files.read_bytes(index_path))
        entries = table["runs"] if table["form"] == [_FORM, *_NAMES] else {}
        return {path: entry for path, entry in entries.items() if len(entry[1]) == len(_NAMES)}
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}


def _store(index_path: Path, entries: dict[str, _Entry]) -> None:
    # Imported here: a project in which nothing has changed is read without it.
    from pydantic_core import to_json

    cache_files.write(
        index_path, to_json({"form": [_FORM, *_NAMES], "runs": entries}, inf_nan_mode="constants").decode()
    )
