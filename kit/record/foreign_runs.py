"""Runs of other users in a shared folder: Slurm's list of the user's own jobs says nothing about theirs, so they are asked for."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kit.errors import RunError
from kit.record.unmade_points import POINTS
from kit.schema.run_paths import RunPaths
from kit.slurm.client import JobId, QueuedJob


@dataclass(frozen=True, kw_only=True)
class ForeignJobs:
    """The jobs of other users that Slurm showed. whole: it shows such jobs to this user, so a missing one does not exist."""

    jobs: Mapping[JobId, QueuedJob]
    whole: bool


_PATHS = RunPaths(Path())
_ELSEWHERE = frozenset({_PATHS.checkpoints.name, _PATHS.workspace.name})
# For a cluster that cannot be asked.
NOTHING = ForeignJobs(jobs={}, whole=False)


def is_foreign(run_dir: Path) -> bool:
    """Whether a run folder, or a link to it, belongs to another user. A point without a folder is its sweep's owner's."""
    folder = _made(run_dir)
    try:
        return {folder.lstat().st_uid, folder.stat().st_uid} != {os.geteuid()}
    except FileNotFoundError:
        return False
    except OSError:
        return True


def require_own_folders(run_dir: Path) -> None:
    """RunError for another user's run, or sweep, with a link in place of a folder that leads out of it: the files there, read as
    the run's, may be this user's own.

    Its checkpoints and workspaces may be elsewhere. Links to files are looked at where they are opened (untrusted_files).
    """
    if not is_foreign(run_dir):
        return
    top = _made(run_dir)
    inside = Path(os.path.realpath(top))
    for folder, names, _ in os.walk(top):
        names[:] = [name for name in names if name not in _ELSEWHERE]
        for link in (Path(folder, name) for name in names if os.path.islink(os.path.join(folder, name))):  # noqa: PTH114, PTH118
            if not Path(os.path.realpath(link)).is_relative_to(inside):
                problem = f"{link}: another user's link in place of a folder of his run"
                raise RunError(problem, hint=f"ls -l {shlex.quote(str(link))}")


def owners(run_dirs: Sequence[Path]) -> list[int]:
    """The numeric user ids that own these folders, sorted, without those of folders that cannot be looked at."""
    found = set[int]()
    for run_dir in run_dirs:
        with contextlib.suppress(OSError):
            found.add(_made(run_dir).stat().st_uid)
    return sorted(found)


def _made(run_dir: Path) -> Path:
    """A run folder; the sweep's for a point that has no folder yet, which is read from the sweep's files."""
    is_point = run_dir.parent.name == POINTS and not os.path.exists(run_dir)  # noqa: PTH110 - no PermissionError
    return run_dir.parent.parent if is_point else run_dir


def hides_its_record(run_dir: Path) -> bool:
    """Whether the run's own record may not be read, so that an end in it would not be seen."""
    try:
        RunPaths(run_dir).events.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(RunPaths(run_dir).events, os.R_OK)
