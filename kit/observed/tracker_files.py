"""Finds the files that trackers wrote into a run folder: its workspace, its checkpoints, and folders of their own."""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from kit.observed import event_file, trainer_files, wandb_file
from kit.observed.figures import Figures

# Folders of the run that the kit writes, and folders of many files in which no tracker writes.
_NOT_HERE = frozenset(
    (
        "logs",
        "state",
        "monitor",
        "bin",
        "lib",
        "code",
        "locks",
        "points",
        "node_modules",
        "site-packages",
        "__pycache__",
    )
)
_MOST_ENTRIES, _MOST_DEPTH = 20_000, 8
# Each start of a program may write a file of its own.
_MOST_FILES = 8


def read_trackers(run_dir: Path, *, since: float) -> Iterator[Figures]:
    """The figures of each file, tracker by tracker, the older files first. since: seconds since the epoch; older files, and points
    in files, are of an earlier run.
    """
    files = _find(run_dir, since)
    for path in files["tensorboard"]:
        if figures := event_file.read_file(path, name=path.relative_to(run_dir).as_posix(), since=since):
            yield figures
    for path in files["wandb"]:
        if figures := wandb_file.read_file(path, name=path.relative_to(run_dir).as_posix(), since=since):
            yield figures
    for path in files["csv"][-1:]:
        if figures := trainer_files.read_csv(path, name=path.relative_to(run_dir).as_posix()):
            yield figures
    for path in files["state"][-1:]:
        if figures := trainer_files.read_trainer_state(path, name=path.relative_to(run_dir).as_posix()):
            yield figures


def _find(run_dir: Path, since: float) -> dict[str, list[Path]]:
    """Kind -> the newest files of it, the oldest first."""
    by_kind: defaultdict[str, list[tuple[float, Path]]] = defaultdict(list)
    folders, left = deque([(run_dir, 0)]), _MOST_ENTRIES
    while folders and left > 0:
        folder, depth = folders.popleft()
        try:
            with os.scandir(folder) as entries:
                for entry in islice(entries, left):
                    left -= 1
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _MOST_DEPTH and entry.name not in _NOT_HERE and not entry.name.startswith("."):
                            folders.append((Path(entry.path), depth + 1))
                    elif (kind := _kind(entry.name)) and entry.is_file(follow_symlinks=False):
                        changed = entry.stat(follow_symlinks=False).st_mtime
                        if changed >= since:
                            by_kind[kind].append((changed, Path(entry.path)))
        except OSError:
            continue
    return defaultdict(
        list, {kind: [path for _, path in sorted(files)[-_MOST_FILES:]] for kind, files in by_kind.items()}
    )


def _kind(name: str) -> str:
    if ".tfevents." in name:
        return "tensorboard"
    if name.endswith(".wandb"):
        return "wandb"
    return {"metrics.csv": "csv", "trainer_state.json": "state"}.get(name, "")
