"""From a job file to a plan, with everything needed to submit it: the code that `kit render` and `kit submit` share."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kit import config, data_folders
from kit.allocation import minutes
from kit.config import Resolved, Sources
from kit.errors import Fault, UsageError
from kit.hosts import clusters
from kit.hosts.host import Host, UserFacts
from kit.planning import site_shell
from kit.planning.plan import Plan, plan
from kit.planning.plan_inputs import Site
from kit.schema.image_choice import is_reference
from kit.schema.job import Job
from kit.slurm import client, embedded
from kit.snapshots.scan import Scan
from kit.submission import chain, portable_job, program_check, workspace

if TYPE_CHECKING:
    from kit.schema.image import ImageLock
    from kit.submission.recorded_inputs import Earlier

_DEBUG_NODES, _DEBUG_TIME = 2, "00:15:00"


@dataclass(frozen=True, kw_only=True)
class Partner:
    """The run on the other cluster of a training over two clusters. token: identifies both runs to the relay; a secret of the
    run."""

    run_id: str
    token: str


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A plan, with everything needed to submit it.

    env: of Slurm's commands. lock: of the image, if it has one. scan: of the job's folder, of which the run gets a copy; None if
    the run works in the folder itself, or in the snapshot of `earlier`, the run that it repeats. host: of its cluster. partner: the
    run on the other cluster of a training over two clusters, and their token.
    """

    plan: Plan
    site: Site
    resolved: Resolved
    lock: ImageLock | None
    env: dict[str, str]
    host: Host
    job_file: Path
    scan: Scan | None = None
    earlier: Earlier | None = None
    partner: Partner | None = None

    @property
    def folder(self) -> Path:
        """The run folder for commands of this machine: for a cluster over ssh, its mirror."""
        return self.host.path_here(self.plan.run_dir)

    @property
    def warnings(self) -> tuple[Fault, ...]:
        """Warnings: the job will run, but perhaps not as intended."""
        return (*self.plan.warnings, *workspace.warnings(self.scan, self.resolved))


def prepare_job(
    job_file: Path,
    *,
    cluster: str | None,
    overrides: list[str],
    containers: bool = True,
    debug: bool = False,
    now: datetime | None = None,
) -> Prepared:
    """Read, check and plan a job. Nothing is written, and Slurm is asked only about its plugins.

    debug: a short run on at most two nodes, with tracing, whatever the job asks for.
    """
    sources = config.read_job(job_file, cluster=cluster, overrides=overrides)
    return prepare_sources(sources, containers=containers, debug=debug, now=now)


def prepare_sources(
    sources: Sources, *, containers: bool = True, debug: bool = False, now: datetime | None = None
) -> Prepared:
    """Plan a job from its sources, which were read already."""
    resolved = sources.resolve()
    if resolved.job.sweep is not None:
        raise UsageError(
            f"{resolved.job_file}: it has a [sweep], and this command takes a single job",
            hint="'kit sweep' submits its points; 'kit submit --base' the job without it, and 'kit submit --point 0' one point",
        )
    return prepare_single(resolved, sources.job_file, containers=containers, debug=debug, now=now)


def prepare_single(
    resolved: Resolved, job_file: Path, *, containers: bool = True, debug: bool = False, now: datetime | None = None
) -> Prepared:
    """Plan a resolved job without sweep and stages."""
    if resolved.job.stages:
        raise UsageError(
            f"{resolved.job_file}: it has [stages], and this command takes a single job",
            hint="'kit submit' submits all stages",
        )
    if debug:
        resolved = replace(resolved, job=_for_debugging(resolved.job))
    return prepare_resolved(resolved, job_file, containers=containers, now=now)


def prepare_resolved(
    resolved: Resolved,
    job_file: Path,
    *,
    containers: bool = True,
    now: datetime | None = None,
    live: bool = False,
    earlier: Earlier | None = None,
    run_id: str | None = None,
    seed: int | None = None,
) -> Prepared:
    """Plan a resolved job.

    live: run in the job's folder itself, whatever the job says. earlier: the run that it repeats. run_id, seed: used instead of new
    ones; a job's own seed comes first.
    """
    if live:
        resolved = replace(resolved, job=resolved.job.model_copy(update={"snapshot": False}))
    host = clusters.host_for(resolved.cluster_name, resolved.cluster, project=resolved.project)
    if not host.shares_files:
        portable_job.require(resolved, earlier)
    facts, pyxis = host.user_facts(), False
    if resolved.cluster.embedded:
        running = embedded.find(resolved.cluster_name)
        if running is not None:
            pyxis = running.has_pyxis
            resolved = _shaped_like(resolved, running)
    env = host.env((*resolved.cluster.inherit, *resolved.job.inherit))
    if not resolved.cluster.embedded and "auto" in {resolved.cluster.container.runtime}:
        pyxis = client.has_pyxis(env=env)
    locks = (lock_of(resolved, earlier), role_locks_of(resolved, earlier)) if containers else (None, {})
    # Two submits of a job may happen in the same second, so the name has a random suffix.
    run_id = run_id or new_run_id(resolved.job.name, now or datetime.now(UTC))
    site = _site(facts, run_id, seed=seed, pyxis=pyxis, containers=containers)
    kept = earlier.snapshot(site.runs_dir, uid=facts.uid) if earlier else None
    scan = None if kept else workspace.scan_workspace(resolved, host.path_here(site.run_dir).parent)
    site = replace(site, snapshot=kept or workspace.snapshot(scan, site.runs_dir, uid=facts.uid))
    site = replace(site, node_order=earlier.node_order if earlier else ())
    run_plan = plan(resolved, locks[0], site, role_locks=locks[1])
    if not host.shares_files:
        portable_job.require_header(run_plan)
    if earlier:
        run_plan = earlier.amended(run_plan)
    if run_plan.job.chain is not None:
        run_plan = chain.with_links(run_plan, file=resolved.job_file)
    if host.shares_files and site_shell.carried(run_plan.decisions):
        env |= site_shell.environment(os.environ)
    program_check.require(run_plan, scan, folder=earlier.folder if earlier else None)
    return Prepared(
        plan=run_plan,
        site=site,
        resolved=resolved,
        lock=locks[0],
        env=env,
        host=host,
        job_file=job_file,
        scan=scan,
        earlier=earlier,
    )


def _for_debugging(job: Job) -> Job:
    asked = job.resources
    shorter = minutes(asked.time) > minutes(_DEBUG_TIME) if asked.time else True
    changed = {"nodes": min(asked.nodes, _DEBUG_NODES), "time": _DEBUG_TIME if shorter else asked.time}
    return job.model_copy(update={"debug": True, "resources": asked.model_copy(update=changed)})


def _shaped_like(resolved: Resolved, running: embedded.Cluster) -> Resolved:
    """The job with the nodes' CPUs and GPUs that the embedded cluster was started with. They may differ from the cluster's file."""
    shape = {"cpus": running.cpus_per_node, "gpus": running.gpus_per_node, "placeholder_gpus": running.has_placeholders}
    node = resolved.cluster.node.model_copy(update=shape)
    cluster = resolved.cluster.model_copy(update={"node": node})
    return Resolved(**{**vars(resolved), "cluster": cluster})


def lock_of(resolved: Resolved, earlier: Earlier | None = None) -> ImageLock | None:
    """The lock of the job's image; None if it was never built, or is a reference with its own digest.

    earlier: a run whose own locks are used first.
    """
    name = resolved.job.image_name
    return (earlier.lock(name) if earlier else None) or _lock_named(resolved, name, "image")


def role_locks_of(resolved: Resolved, earlier: Earlier | None = None) -> dict[str | None, ImageLock | None]:
    """The locks of the images that roles name."""
    named = {role.image: f"roles.{name}.image" for name, role in resolved.job.roles.items() if role.image}
    return {
        image: (earlier.lock(image) if earlier else None) or _lock_named(resolved, image, key)
        for image, key in named.items()
    }


def _lock_named(resolved: Resolved, name: str | None, key: str) -> ImageLock | None:
    if name is None or is_reference(name):
        return None
    from kit.images import image_lock

    path = image_lock.find(name, project=resolved.project)
    if path is not None:
        return image_lock.read_lock(path)
    # Either the image is not built yet, or there is no such image; the latter is an error that names the nearest one.
    data_folders.find("containers", name, project_dir=resolved.project, asked_by=resolved.job_file, key=key)
    return None


def _site(facts: UserFacts, run_id: str, *, seed: int | None, pyxis: bool, containers: bool) -> Site:
    return Site(
        run_id=run_id,
        run_dir=facts.runs / run_id,
        runs_dir=facts.runs,
        avoid=facts.avoid,
        user=facts.user,
        home=facts.home,
        data=facts.data,
        store=facts.store,
        seed=secrets.randbits(31) if seed is None else seed,
        pyxis=pyxis,
        containers=containers,
    )


def new_run_id(name: str, now: datetime) -> str:
    """The id of a new run of a job: its name, the time in UTC, and two random bytes."""
    return f"{name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
