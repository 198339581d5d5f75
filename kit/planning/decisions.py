"""Decisions: all that is decided of a run, in one record. Files and command lines are read from it, and decide nothing."""

from __future__ import annotations

from dataclasses import dataclass

from kit import runtimes
from kit.allocation import Allocation
from kit.config import Resolved
from kit.frameworks import Extra
from kit.planning.paths import ClusterPaths
from kit.planning.pinned_images import Pin, Pins
from kit.planning.placement import RolePlacement, world_sizes
from kit.planning.plan_inputs import Site
from kit.runtimes import Runtime
from kit.spec.cluster import NodeShape
from kit.spec.job import Job


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """One run. resolved: with the job complete. extra: what the framework adds."""

    resolved: Resolved
    site: Site
    allocation: Allocation
    extra: Extra
    roles: tuple[RolePlacement, ...]
    paths: ClusterPaths
    pins: Pins

    @property
    def job(self) -> Job:
        """The job, with no choice open."""
        return self.resolved.job

    @property
    def node(self) -> NodeShape:
        """A node of the cluster."""
        return self.resolved.cluster.node

    @property
    def runtime(self) -> Runtime:
        """Of containers."""
        return runtimes.get(self.job.container.runtime)

    @property
    def pin(self) -> Pin:
        """The job's own image."""
        return self.pins.own

    @property
    def every_node(self) -> int:
        """Nodes of the job, the spares among them."""
        return self.allocation.nodes + self.job.retry.spares

    @property
    def outlives(self) -> bool:
        """Whether the run continues when a node is lost: only spares and replicas take over."""
        return bool(self.job.retry.spares) or any(r.role.policy == "replica" for r in self.roles)

    @property
    def main(self) -> RolePlacement:
        """The role in whose container a shell or a probe starts."""
        return next(r for r in self.roles if r.role.policy != "service")

    @property
    def world_sizes(self) -> dict[str, int]:
        """Role -> its world size; a job without roles has the one of world_sizes.PLAIN."""
        return world_sizes(self.roles)
