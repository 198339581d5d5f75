"""Chooses the Slurm to ask about a run: an embedded cluster has its own slurm.conf, and may be down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kit.hosts import remote_clusters
from kit.record import foreign_runs
from kit.record.foreign_runs import ForeignJobs
from kit.slurm import accounting, client
from kit.slurm.accounting import Accounted
from kit.slurm.client import JobId


def foreign(name: str, jobs: Sequence[JobId], run_dirs: Sequence[Path]) -> ForeignJobs:
    """The jobs of other users' runs, with these run folders, on a cluster, asked for by number and owner.

    An embedded cluster of another user cannot be asked. In the mirror of a cluster over ssh each run is the user's own.
    """
    if not remote_clusters.find_host(name).shares_files or not is_up(name):
        return foreign_runs.NOTHING
    found, whole = client.foreign(jobs, foreign_runs.owners(run_dirs), env=env_of(name))
    return ForeignJobs(jobs=found, whole=whole)


def history(*, say: Callable[[str], None]) -> Callable[[str, Sequence[JobId]], dict[JobId, Accounted]]:
    """A function that returns jobs from a cluster's accounting. Each call asks once; `say` is called if accounting does not
    answer."""

    def ask(name: str, jobs: Sequence[JobId]) -> dict[JobId, Accounted]:
        if not is_up(name):
            return {}
        return accounting.history(jobs, env=env_of(name), say=say)

    return ask


def env_of(cluster: str) -> dict[str, str]:
    """The environment of Slurm's commands for a cluster. For a cluster over ssh it contains the connection."""
    return remote_clusters.find_host(cluster).env()


def is_up(cluster: str) -> bool:
    """Whether the cluster's Slurm can be asked: an embedded cluster may be down, and a cluster over ssh may not answer."""
    return remote_clusters.find_host(cluster).is_up()
