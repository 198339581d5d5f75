"""Asks Slurm about jobs that the queue does not show: those of other users, and those that have left it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kit.hosts.clusters import find_host
from kit.record import foreign_runs
from kit.record.foreign_runs import ForeignJobs
from kit.slurm import accounting, client
from kit.slurm.accounting import Accounted
from kit.slurm.client import JobId


def find_foreign(name: str, jobs: Sequence[JobId], run_dirs: Sequence[Path]) -> ForeignJobs:
    """The jobs of other users' runs, with these run folders, on a cluster, asked for by number and owner.

    An embedded cluster of another user cannot be asked. In the mirror of a cluster over ssh each run is the user's own.
    """
    host = find_host(name)
    if not host.shares_files or not host.is_up():
        return foreign_runs.NOTHING
    found, whole = client.foreign(jobs, foreign_runs.owners(run_dirs), env=host.env())
    return ForeignJobs(jobs=found, whole=whole)


def ask_accounting(*, say: Callable[[str], None]) -> Callable[[str, Sequence[JobId]], dict[JobId, Accounted]]:
    """A function that returns jobs from a cluster's accounting. Each call asks once; `say` is called if accounting does not
    answer."""

    def ask(name: str, jobs: Sequence[JobId]) -> dict[JobId, Accounted]:
        host = find_host(name)
        return accounting.history(jobs, env=host.env(), say=say) if host.is_up() else {}

    return ask
