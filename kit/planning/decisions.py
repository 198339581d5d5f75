"""Decisions: everything that is decided about a run, in one record. Files and command lines only read it."""

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
from kit.schema.cluster import NodeShape
from kit.schema.job import Job


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """The decisions of one run. resolved: with the completed job. extra: the framework's additions."""

    resolved: Resolved
    site: Site
    allocation: Allocation
    extra: Extra
    roles: tuple[RolePlacement, ...]
    paths: ClusterPaths
    pins: Pins

    @property
    def job(self) -> Job:
        """The completed job."""
        return self.resolved.job

    @property
    def node(self) -> NodeShape:
        """The shape of the cluster's nodes."""
        return self.resolved.cluster.node

    @property
    def has_gpus(self) -> bool:
        """Whether the job gets GPUs that programs can compute on."""
        return bool(self.allocation.gpus_per_node) and self.resolved.cluster.computes_on_gpus

    def computes_with_torch(self, placed: RolePlacement) -> bool:
        """Whether a role runs a program of the launcher, and that one needs torch. A program of the user's may need anything."""
        own = placed.role.command is None and placed.role.script is None and self.job.is_launchers
        return own and "torch" in self.resolved.launcher.required(self.job)

    @property
    def runs_commands(self) -> bool:
        """Whether ranks run a command or a module, which may be any program, and not a script."""
        of_roles = any(placed.role.command is not None for placed in self.roles)
        return of_roles or self.job.command is not None or self.job.module is not None

    @property
    def runtime(self) -> Runtime:
        """The container runtime."""
        return runtimes.get(self.job.container.runtime)

    @property
    def pin(self) -> Pin:
        """The pin of the job's own image."""
        return self.pins.own

    @property
    def every_node(self) -> int:
        """The number of nodes including spares."""
        return self.allocation.nodes + self.job.retry.spares

    @property
    def outlives(self) -> bool:
        """Whether the run continues when a node is lost: only spares and replicas can take over."""
        return bool(self.job.retry.spares) or any(r.role.policy == "replica" for r in self.roles)

    @property
    def main(self) -> RolePlacement:
        """The role whose container is used for a shell or a probe."""
        return next(r for r in self.roles if r.role.policy != "service")

    @property
    def world_sizes(self) -> dict[str, int]:
        """Role -> its world size. A job without roles has only world_sizes.PLAIN."""
        return world_sizes(self.roles)
