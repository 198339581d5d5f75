"""Chooses the Slurm to ask about a run: an embedded cluster has its own slurm.conf, and may be down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kit import data_folders
from kit.errors import ConfigError
from kit.hosts import remote_clusters
from kit.hosts.status import Queue, Status
from kit.record import cache_files, foreign_runs, known_files
from kit.record.foreign_runs import ForeignJobs
from kit.slurm import accounting, client
from kit.slurm.accounting import Accounted
from kit.slurm.client import JobId, QueuedJob


def queue() -> Queue:
    """A function that returns the queue of a cluster. Each call asks the cluster's Slurm once.

    An embedded cluster that is not up has no jobs. For a cluster that cannot be reached the result is None.
    """
    return _queue


def _queue(name: str) -> Mapping[JobId, QueuedJob] | None:
    remote = remote_clusters.of(name)
    if remote is not None:
        return remote_clusters.queue(remote)
    if not is_up(name):
        return {}
    env = env_of(name)
    jobs = client.queue(env=env)
    if cache_files.halves().is_dir():
        from kit.pair import lone_halves

        if lone_halves.cancel_here(name, jobs, env=env):
            return client.queue(env=env)
    return jobs


def foreign(name: str, runs: Sequence[Status]) -> ForeignJobs:
    """The jobs of other users' runs on a cluster, asked for by number and owner.

    An embedded cluster of another user cannot be asked. In the mirror of a cluster over ssh each run is the user's own.
    """
    if remote_clusters.of(name) is not None or not is_up(name):
        return foreign_runs.NOTHING
    jobs = [one.job_id for one in runs if one.job_id is not None]
    found, whole = client.foreign(jobs, foreign_runs.owners([one.run_dir for one in runs]), env=env_of(name))
    return ForeignJobs(jobs=found, whole=whole)


def history(*, say: Callable[[str], None]) -> Callable[[str, Sequence[JobId]], dict[JobId, Accounted]]:
    """A function that returns jobs from a cluster's accounting. Each call asks once; `say` is called if accounting does not
    answer."""

    def ask(name: str, jobs: Sequence[JobId]) -> dict[JobId, Accounted]:
        remote = remote_clusters.of(name)
        if remote.silent if remote else not is_up(name):
            return {}
        return accounting.history(jobs, env=env_of(name), say=say)

    return ask


def env_of(cluster: str) -> dict[str, str]:
    """The environment of Slurm's commands for a cluster. For a cluster over ssh it contains the connection."""
    remote = remote_clusters.of(cluster)
    if remote is not None:
        return remote.env()
    conf = known_files.embedded_conf(cluster)
    return client.environment({"SLURM_CONF": str(conf)} if conf else {})


def is_up(cluster: str) -> bool:
    """Whether the cluster's Slurm can be asked. Only an embedded cluster can be down; any other is assumed to be up."""
    try:
        entry = data_folders.find("clusters", cluster, project_dir=data_folders.project())
        return not known_files.cluster(entry.path).embedded or known_files.embedded_conf(cluster) is not None
    except ConfigError:
        return known_files.embedded_conf(cluster) is not None
