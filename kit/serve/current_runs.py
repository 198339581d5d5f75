"""The present state of a project's runs. It is read once for all readers of the pages."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kit.errors import SlurmError, ToolError
from kit.hosts import status as host_status
from kit.hosts.host import Queue
from kit.hosts.status import Status
from kit.record import find_runs, metrics, unmade_points
from kit.record.unmade_points import POINTS
from kit.schema.run_paths import RunPaths
from kit.slurm.client import JobId, QueuedJob

# A look at the folders, and a question to Slurm, which answers all of its users.
_LOOK_S, _ASK_S = 2.0, 10.0


class Board:
    """The present state of all runs. Its methods are thread-safe. folders: of runs. ask: returns Slurm's queue on a cluster."""

    def __init__(self, folders: Callable[[], list[Path]], ask: Queue) -> None:
        self._folders, self._ask = folders, ask
        self._lock = threading.Lock()
        self._runs: dict[str, Status] = {}
        self._looked = -_LOOK_S
        self._queues: dict[str, tuple[float, Mapping[JobId, QueuedJob]]] = {}

    def folders(self) -> list[Path]:
        """The folders of runs."""
        return self._folders()

    def runs(self) -> dict[str, Status]:
        """All runs by their ids, oldest first."""
        with self._lock:
            if time.monotonic() - self._looked >= _LOOK_S:
                found = host_status.of_facts(find_runs.find_all(self._folders()), queue=self.queue)
                self._runs = {one.run_dir.name: one for one in found}
                self._looked = time.monotonic()
            return self._runs

    def run(self, run_id: str) -> Status | None:
        """The run with exactly this id; None for a path or the start of an id."""
        found = self.runs().get(run_id)
        if found is not None:
            unmade_points.make(found.run_dir)
        return found

    def sweep(self, sweep_id: str) -> Path | None:
        """The folder of the sweep with exactly this id."""
        return next((s for s in self.sweeps() if s.name == sweep_id), None)

    def sweeps(self) -> dict[Path, list[Status]]:
        """The folders of sweeps with their points."""
        found: dict[Path, list[Status]] = {}
        for one in self.runs().values():
            if one.run_dir.parent.name == POINTS:
                found.setdefault(one.run_dir.parent.parent, []).append(one)
        return found

    def queue(self, cluster: str) -> Mapping[JobId, QueuedJob]:
        """The user's jobs on a cluster, at most ten seconds old. If Slurm does not answer, the jobs of its last answer."""
        asked, known = self._queues.get(cluster, (-_ASK_S, {}))
        if time.monotonic() - asked >= _ASK_S:
            with contextlib.suppress(SlurmError, ToolError):
                answered = self._ask(cluster)
                known = known if answered is None else answered
            self._queues[cluster] = (time.monotonic(), known)
        return known

    def forget(self) -> None:
        """Forget Slurm's answers, after a run was cancelled or submitted again."""
        with self._lock:
            self._queues.clear()
            self._looked = -_LOOK_S


def trace(run: Status) -> tuple[object, ...]:
    """A value that changes whenever the run's page changes: the run's state, and the sizes of its growing files."""
    paths = RunPaths(run.run_dir)
    return (
        run.state,
        run.exit_code,
        _size(paths.events),
        *map(_size, metrics.files(run.run_dir)),
        *_sizes(paths.monitor),
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _sizes(folder: Path) -> tuple[int, int]:
    """How many files a folder has, and their bytes."""
    try:
        with os.scandir(folder) as entries:
            found = [entry.stat().st_size for entry in entries]
    except OSError:
        found = []
    return len(found), sum(found)
