"""Runs of other users in a shared folder: Slurm's list of the user's own jobs says nothing about theirs, so they are asked for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kit.schema.run_paths import RunPaths
from kit.slurm.client import JobId, QueuedJob


@dataclass(frozen=True, kw_only=True)
class ForeignJobs:
    """The jobs of other users that Slurm showed. whole: it shows such jobs to this user, so a missing one does not exist."""

    jobs: Mapping[JobId, QueuedJob]
    whole: bool


# For a cluster that cannot be asked.
NOTHING = ForeignJobs(jobs={}, whole=False)


def is_foreign(run_dir: Path) -> bool:
    """Whether a run folder belongs to another user. A point of a sweep whose folder is not made yet is the user's own."""
    try:
        return run_dir.stat().st_uid != os.geteuid()
    except FileNotFoundError:
        return False
    except OSError:
        return True


def owners(run_dirs: Sequence[Path]) -> list[int]:
    """The numeric user ids that own these folders, sorted, without those of folders that cannot be looked at."""
    found = set[int]()
    for run_dir in run_dirs:
        with contextlib.suppress(OSError):
            found.add(run_dir.stat().st_uid)
    return sorted(found)


def hides_its_record(run_dir: Path) -> bool:
    """Whether the run's own record may not be read, so that an end in it would not be seen."""
    try:
        RunPaths(run_dir).events.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(RunPaths(run_dir).events, os.R_OK)
