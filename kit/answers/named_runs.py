"""Finds the runs that a user names, also those of clusters over ssh, whose mirrors are updated first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from kit import data_folders
from kit.hosts import clusters
from kit.record import find_runs
from kit.submission import catch_up

Say = Callable[[str], None]


def folders(given: Path | None, *names: str | None, say: Say) -> list[Path]:
    """The folders in which runs are searched: `given`, or those of all clusters. Clusters over ssh are updated in parallel.

    names: of the wanted runs; a cluster that cannot have any of them is not asked. say: called for a cluster that does not answer.
    """
    if given:
        return [given]
    project = data_folders.project()
    for problem in catch_up.refresh(project, names or (None,)).values():
        say(f"{problem}\n  what follows is as it was when it last answered")
    return find_runs.folders(project)


def find_dir(name: str | None, runs_dir: Path | None, *, say: Say) -> Path:
    """The folder of a run, by any of its names; for a run on another machine, its updated mirror."""
    run_dir = find_runs.find_one(name, folders(runs_dir, name, say=say))
    clusters.fetch(run_dir)
    return run_dir


def find_dirs(names: Sequence[str], runs_dir: Path | None, *, say: Say) -> list[Path]:
    """The folders of these runs, and of all points of these sweeps, each once; those on another machine as updated mirrors."""
    from kit.ledger import find as named

    run_dirs = fetched(runs_dir, names, say=say)
    found = (named.sweep_points(name, run_dirs) or [find_runs.find_one(name, run_dirs)] for name in names)
    return list(dict.fromkeys(chain(*found)))


def fetched(runs_dir: Path | None, names: Sequence[str | None], *, say: Say) -> list[Path]:
    """The same as `folders`, with updated files of these runs and of the points of these sweeps."""
    from kit.ledger import find as named

    run_dirs = folders(runs_dir, *names, say=say)
    for name in names:
        points = named.sweep_points(name, run_dirs)
        if points:
            clusters.fetch_sweep(points[0].parent.parent)
        else:
            clusters.fetch(find_runs.find_one(name, run_dirs))
    return run_dirs
