"""Asks the project's clusters, and finishes what interrupted commands left: jobs to record, and halves of trainings to cancel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kit.hosts import clusters
from kit.hosts.host import Host, Queue
from kit.slurm.client import JobId, QueuedJob
from kit.submission import lone_halves


def refresh(project: Path, names: Sequence[str | None] = (None,)) -> dict[str, str]:
    """Update what may contain runs of these names, and catch up there; cluster -> reason why it does not answer."""
    return clusters.refresh(project, names, then=catch_up)


def catch_up(host: Host) -> None:
    """Finish what interrupted commands left on a host that has answered just now."""
    host.settle()
    lone_halves.cancel_noted(host)


def queue() -> Queue:
    """A function that returns the queue of a cluster. Each call asks the cluster's Slurm once.

    An embedded cluster that is not up has no jobs. For a cluster that cannot be reached the result is None.
    """
    return _queue


def _queue(name: str) -> Mapping[JobId, QueuedJob] | None:
    host = clusters.find_host(name)
    if host.refresh_if_old():
        host.settle()
    lone_halves.cancel_noted(host)
    return host.queue()
