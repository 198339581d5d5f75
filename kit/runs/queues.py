"""Which Slurm to ask about a run: an embedded cluster has its own slurm.conf, and may be down."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kit import config, data_folders
from kit.errors import ConfigError
from kit.slurm import accounting, client, embedded
from kit.slurm.accounting import Accounted
from kit.slurm.client import JobId, QueuedJob
from kit.spec.cluster import Cluster


def queue() -> Callable[[str], dict[JobId, QueuedJob]]:
    """Asks Slurm once per cluster and call; a cluster that is not up has no jobs."""
    return lambda name: client.queue(env=env_of(name)) if is_up(name) else {}


def history(*, say: Callable[[str], None]) -> Callable[[str, Sequence[JobId]], dict[JobId, Accounted]]:
    """Asks a cluster's accounting, once per cluster and call, of jobs. say hears when it does not answer."""
    return lambda name, jobs: accounting.history(jobs, env=env_of(name), say=say) if is_up(name) else {}


def env_of(cluster: str) -> dict[str, str]:
    """The environment of Slurm's commands for a cluster."""
    running = embedded.find(cluster)
    return client.environment(running.env() if running else {})


def is_up(cluster: str) -> bool:
    """Whether there is a Slurm to ask: an embedded cluster may be down, any other is taken to be there."""
    try:
        entry = data_folders.find("clusters", cluster, project_dir=data_folders.project())
        return not config.load_model(entry.path, Cluster).embedded or embedded.find(cluster) is not None
    except ConfigError:
        return embedded.find(cluster) is not None
