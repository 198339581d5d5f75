"""From a job file with a `[sweep]` to a plan for each point: each is checked as a job of its own, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from kit import config
from kit.config import Resolved, Sources
from kit.errors import ConfigError, Fault, UsageError
from kit.planning.plan import plan
from kit.runs import program, submit
from kit.runs.submit import Prepared
from kit.spec import log_pattern
from kit.spec.form import shown
from kit.spec.image import ImageLock
from kit.spec.sweep import Sweep
from kit.sweeps.arrays import Array, group, nodes_of
from kit.sweeps.expand import Expansion, Point, expand
from kit.sweeps.faults import Gathered, clash, of_points
from kit.sweeps.keys import clashes, job_keys
from kit.sweeps.limits import max_array
from kit.sweeps.record import SweepPaths, SweepRecord
from kit.sweeps.tables import Tables


@dataclass(frozen=True, kw_only=True)
class PreparedSweep:
    """A sweep, planned. runs: a planned run for each point, in the order of `expansion.points`."""

    job_file: Path
    job_name: str
    sweep: Sweep
    expansion: Expansion
    runs: tuple[Prepared, ...]
    folder: Path

    @property
    def points(self) -> tuple[Point, ...]:
        """The points, numbered as their run folders are."""
        return self.expansion.points

    def arrays(self, points: Sequence[int] | None = None, *, first: int = 0) -> tuple[Array, ...]:
        """The arrays that submit these points (default: all). first: the number of the first array."""
        wanted = {p.index for p in self.points} if points is None else set(points)
        plans = {p.index: run.plan for p, run in zip(self.points, self.runs, strict=True) if p.index in wanted}
        return group(
            plans,
            name=self.job_name,
            folder=SweepPaths(self.folder).arrays,
            first=first,
            max_array=max_array(self.runs),
            parallel=self.sweep.parallel,
            max_nodes=self.sweep.max_nodes,
        )


def prepare(
    job_file: Path,
    *,
    cluster: str | None,
    overrides: Sequence[str] = (),
    containers: bool = True,
    now: datetime | None = None,
    into: SweepRecord | None = None,
) -> PreparedSweep:
    """Read, expand, check and plan. ConfigError with the faults of all points at once.

    into: a sweep that was submitted; its points keep their numbers and its seed, new ones are numbered after them.
    """
    sources = config.read_job(job_file, cluster=cluster, overrides=overrides)
    return prepare_sources(sources, containers=containers, now=now, into=into)


def prepare_sources(
    sources: Sources, *, containers: bool = True, now: datetime | None = None, into: SweepRecord | None = None
) -> PreparedSweep:
    """The same for a job that is read already."""
    job_file, base = sources.job_file, sources.resolve()
    sweep = base.job.sweep
    if sweep is None:
        raise UsageError(
            f"{base.job_file}: it has no [sweep]", hint="'kit submit' runs a single job; docs/sweeps.md shows the table"
        )
    file = base.job_file
    expansion = expand(sweep, base=sources.merged(), tables=Tables(base.project), file=file)
    if into is not None:
        expansion = _renumbered(expansion, into)
    faults = Gathered()
    resolved = _resolve(sources, expansion.points, file, faults)
    first = _first(resolved, job_file, containers=containers, now=now, faults=faults)
    if into is not None:
        first = replace(first, site=replace(first.site, seed=into.seed))
    folder = first.site.run_dir.parent / (into.sweep_id if into else first.site.run_id)
    runs = _plan(resolved, first, SweepPaths(folder), faults)
    faults.raise_any()
    _check_nodes(runs, sweep, file)
    return PreparedSweep(
        job_file=job_file, job_name=base.job.name, sweep=sweep, expansion=expansion, runs=runs, folder=folder
    )


def _check_nodes(runs: Sequence[Prepared], sweep: Sweep, file: str) -> None:
    """A point that alone has more nodes than the sweep may use would never start."""
    most = max(nodes_of(run.plan) for run in runs)
    if sweep.max_nodes is not None and sweep.max_nodes < most:
        problem = f"{sweep.max_nodes} nodes are too few: the largest point has {most} and could never start"
        raise ConfigError.of(Fault(file=file, key="sweep.max_nodes", problem=problem, hint=f"max_nodes = {most}"))


def _renumbered(expansion: Expansion, into: SweepRecord) -> Expansion:
    """Points that the sweep has already get their old numbers; the others follow."""
    known = {recorded.point().identity: recorded.index for recorded in into.points}
    following = iter(range(len(into.points), len(into.points) + len(expansion.points)))
    points = [replace(p, index=known[p.identity] if p.identity in known else next(following)) for p in expansion.points]
    return replace(expansion, points=tuple(points))


_Pair = tuple[Point, Resolved]


def _resolve(sources: Sources, points: Sequence[Point], file: str, faults: Gathered) -> list[_Pair]:
    """Each point with its job, those with faults left out."""
    args = sources.merged().get("args", [])
    found = []
    for point in points:
        faults.add(point, [clash(key, file) for key in clashes(point, sources.set_here)])
        with faults.of(point):
            one = sources.resolve(job_keys(point, args), label=of_points(file))
            _require_single(one)
            found.append((point, replace(one, job=one.job.model_copy(update={"sweep": None}))))
    return found


def _require_single(one: Resolved) -> None:
    """A point is one job: tasks of an array cannot be links of a chain, have no stages, and do not write into one file."""
    wrong = [
        Fault(file=one.job_file, key=key, problem="a job with [sweep] cannot have this table", hint=hint)
        for key, there, hint in (
            ("chain", one.job.chain is not None, "[retry]\n       requeue = 10"),
            ("stages", bool(one.job.stages), "kit sweep --after SWEEP:corr, where one sweep is to wait for another"),
        )
        if there
    ]
    for key, pattern in (("slurm.output", one.job.slurm.output), ("slurm.error", one.job.slurm.error)):
        if pattern is not None and not log_pattern.is_of_one_job(pattern, array=True):
            problem = f"all points would write into {shown(pattern)}: its name needs %j, or %A and %a"
            hint = f'{key.partition(".")[2]} = "logs/%x-%A-%a.out"'
            wrong.append(Fault(file=one.job_file, key=key, problem=problem, hint=hint))
    if wrong:
        raise ConfigError.of(*wrong)


def _first(
    resolved: Sequence[_Pair], job_file: Path, *, containers: bool, now: datetime | None, faults: Gathered
) -> Prepared:
    """The first point that can be planned, with what it found out about the cluster; all others are planned at the same place."""
    for point, one in resolved:
        with faults.of(point):
            return submit.prepare_resolved(one, job_file, containers=containers, now=now)
    raise faults.error()


def _plan(resolved: Sequence[_Pair], first: Prepared, paths: SweepPaths, faults: Gathered) -> tuple[Prepared, ...]:
    lock_of = _locks(first)
    runs = []
    for point, one in resolved:
        run_dir = paths.point(point.index)
        here = replace(one, cluster=first.resolved.cluster)
        site = replace(first.site, run_id=run_dir.name, run_dir=run_dir)
        with faults.of(point):
            lock = lock_of(here)
            others = submit.role_locks_of(here) if first.site.containers else {}
            made = plan(here, lock, site, role_locks=others)
            program.require(made)
            runs.append(replace(first, plan=made, site=site, resolved=here, lock=lock))
    return tuple(runs)


def _locks(first: Prepared) -> Callable[[Resolved], ImageLock | None]:
    """The lock of a point's image, read once for each image."""
    known = {first.resolved.job.image_name: first.lock}

    def lock_of(resolved: Resolved) -> ImageLock | None:
        image = resolved.job.image_name
        if image not in known:
            known[image] = submit.lock_of(resolved) if first.site.containers else None
        return known[image]

    return lock_of
