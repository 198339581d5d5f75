"""Turns a job file with a `[sweep]` into points, each checked like a separate job; nothing is written.

Plans are not kept: 100,000 of them would need a gigabyte. A point is planned when its run folder is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import overload

from kit import config
from kit.config import Resolved, Sources, program_arguments
from kit.errors import ConfigError, Fault, UsageError
from kit.planning.plan import plan
from kit.schema import slurm_filename_pattern
from kit.schema.image import ImageLock
from kit.schema.sweep import Sweep
from kit.schema.wrong_value_messages import shown
from kit.slurm import client
from kit.submission import prepare_run, program_check
from kit.submission.prepare_run import Prepared
from kit.sweeps.arrays import Array, group
from kit.sweeps.points.expand import Expansion, Point, expand
from kit.sweeps.points.grouped_faults import Gathered, clash, of_points
from kit.sweeps.points.point_keys import clashes, job_keys, words_clash
from kit.sweeps.points.table_lookup import Tables
from kit.sweeps.record import SweepPaths, SweepRecord
from kit.sweeps.search import search_requirements
from kit.sweeps.shared_plans import Kind, Kinds, kind_of


@dataclass(frozen=True, kw_only=True)
class PreparedSweep:
    """A checked sweep. kinds: one for each point of `expansion.points`. planned: plans a point, anew at each call. free: the keys
    of a point whose values no rule reads.

    first: one point's plan, with the facts that it found about the cluster.
    """

    job_file: Path
    job_name: str
    sweep: Sweep
    expansion: Expansion
    kinds: tuple[Kind, ...]
    first: Prepared
    planned: Callable[[Point], Prepared]
    free: Callable[[Point], tuple[str, ...]]
    folder: Path

    @property
    def at(self) -> Path:
        """The sweep's folder on this machine. For a cluster over ssh that is the mirror."""
        return self.first.host.path_here(self.folder)

    @property
    def points(self) -> tuple[Point, ...]:
        """The points of the sweep; their run folders have the same numbers."""
        return self.expansion.points

    @property
    def runs(self) -> Sequence[Prepared]:
        """The points' plans; each is made when it is used."""
        return _PreparedRuns(self.points, self.planned)

    @cached_property
    def _max_array(self) -> int:
        """The smallest limit of an array: the cluster's file, the QOS rows in use, and the controller if it can be asked."""
        # The controller is asked once for a sweep: for the arrays that are shown, and for those that are submitted.
        cluster = self.first.resolved.cluster
        rows = [cluster.qos[name] for name in {kind.qos for kind in self.kinds} if name in cluster.qos]
        asked = client.max_array_size(env=self.first.env)
        return min(limit for limit in (cluster.max_array, asked, *(row.max_array for row in rows)) if limit is not None)

    def arrays(self, points: Sequence[int] | None = None, *, first: int = 0) -> tuple[Array, ...]:
        """The arrays for submitting these points (default: all). first: the number of the first array."""
        wanted = None if points is None else set(points)
        pairs = zip(self.points, self.kinds, strict=True)
        return group(
            {p.index: kind for p, kind in pairs if wanted is None or p.index in wanted},
            name=self.job_name,
            folder=SweepPaths(self.folder).arrays,
            first=first,
            max_array=self._max_array,
            parallel=self.sweep.parallel,
            max_nodes=self.sweep.max_nodes,
            search=search_requirements.argv() if self.sweep.search else (),
        )


@dataclass(frozen=True)
class _PreparedRuns(Sequence[Prepared]):
    points: tuple[Point, ...]
    planned: Callable[[Point], Prepared]

    def __len__(self) -> int:
        return len(self.points)

    @overload
    def __getitem__(self, place: int) -> Prepared: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Prepared]: ...
    def __getitem__(self, place: int | slice) -> Prepared | Sequence[Prepared]:
        found = self.points[place]
        return _PreparedRuns(found, self.planned) if isinstance(found, tuple) else self.planned(found)


def prepare_sweep(
    job_file: Path,
    *,
    cluster: str | None,
    overrides: Sequence[str] = (),
    containers: bool = True,
    now: datetime | None = None,
    into: SweepRecord | None = None,
) -> PreparedSweep:
    """Read, expand, check and plan. ConfigError with the faults of all points at once.

    into: a submitted sweep; its points keep their numbers and its seed, and new points get the next numbers.
    """
    sources = config.read_job(job_file, cluster=cluster, overrides=overrides)
    return prepare_sources(sources, containers=containers, now=now, into=into)


def prepare_sources(
    sources: Sources, *, containers: bool = True, now: datetime | None = None, into: SweepRecord | None = None
) -> PreparedSweep:
    """Prepare the sweep of a job that was read already."""
    job_file, base = sources.job_file, sources.resolve()
    sweep = base.job.sweep
    if sweep is None:
        raise UsageError(
            f"{base.job_file}: it has no [sweep]",
            hint="'kit submit' submits a job without [sweep]; docs/guides/sweeps.md shows the table",
        )
    file = base.job_file
    expansion = expand(sweep, base=sources.merged(), tables=Tables(base.project), file=file)
    if into is not None:
        expansion = _renumbered(expansion, into)
    planner = _Planner(sources, file, containers=containers, now=now, into=into)
    known = Kinds(planner.resolved, lambda point, one: kind_of(planner.prepared(point, one).plan))
    kinds = _kinds(planner, expansion.points, known, faults := Gathered())
    if planner.first is None or planner.folder is None:
        raise faults.error()
    if sweep.search is not None:
        search_requirements.check(sweep.search, planner, expansion.points[0], faults)
    faults.raise_any()
    _check_nodes(kinds, sweep, file)
    return PreparedSweep(
        job_file=job_file,
        job_name=base.job.name,
        sweep=sweep,
        expansion=expansion,
        kinds=kinds,
        first=planner.first,
        planned=planner.planned,
        free=known.free,
        folder=planner.folder,
    )


def _check_nodes(kinds: Sequence[Kind], sweep: Sweep, file: str) -> None:
    """Refuse a point that needs more nodes than the sweep may use: it would never start."""
    most = max(kind.held for kind in kinds)
    if sweep.max_nodes is not None and sweep.max_nodes < most:
        problem = f"{sweep.max_nodes} nodes are too few: the largest point has {most} and could never start"
        raise ConfigError.of(Fault(file=file, key="sweep.max_nodes", problem=problem, hint=f"max_nodes = {most}"))


def _renumbered(expansion: Expansion, into: SweepRecord) -> Expansion:
    """Points that the sweep already has keep their numbers; the others follow."""
    known = {recorded.point().identity: recorded.index for recorded in into.points}
    following = iter(range(len(into.points), len(into.points) + len(expansion.points)))
    points = [replace(p, index=known[p.identity] if p.identity in known else next(following)) for p in expansion.points]
    return replace(expansion, points=tuple(points))


def _kinds(planner: _Planner, points: Sequence[Point], known: Kinds, faults: Gathered) -> tuple[Kind, ...]:
    """The kind of each point. Faults of a point are collected; such a point has no kind."""
    kinds = []
    for point in points:
        faults.add(point, [clash(key, planner.file) for key in clashes(point, planner.sources.set_here)])
        of_words = words_clash(point, planner.sources.words)
        faults.add(point, [clash(key, planner.file, program_arguments.PLACE) for key in of_words])
        with faults.collect(point):
            kinds.append(known.find_kind(point))
    return tuple(kinds)


def _require_single(resolved: Resolved) -> None:
    """Require that a point is a single job: array tasks cannot form a chain or have stages, and must not write to one file."""
    wrong = [
        Fault(file=resolved.job_file, key=key, problem="a job with [sweep] cannot have this table", hint=hint)
        for key, is_set, hint in (
            ("chain", resolved.job.chain is not None, "[retry]\n       requeue = 10"),
            (
                "stages",
                bool(resolved.job.stages),
                "kit sweep --after SWEEP:corr, where one sweep is to wait for another",
            ),
        )
        if is_set
    ]
    for key, pattern in (("slurm.output", resolved.job.slurm.output), ("slurm.error", resolved.job.slurm.error)):
        if pattern is not None and not slurm_filename_pattern.is_of_one_job(pattern, array=True):
            problem = f"all points would write into {shown(pattern)}: its name needs %j, or %A and %a"
            hint = f'{key.partition(".")[2]} = "logs/%x-%A-%a.out"'
            wrong.append(Fault(file=resolved.job_file, key=key, problem=problem, hint=hint))
    if wrong:
        raise ConfigError.of(*wrong)


class _Planner:
    """Plans points, each in its own folder inside the sweep's. first: the first point that could be planned; it fixes the place."""

    def __init__(
        self, sources: Sources, file: str, *, containers: bool, now: datetime | None, into: SweepRecord | None
    ) -> None:
        self.sources, self.file = sources, file
        self._containers, self._now, self._into = containers, now, into
        self._args = sources.merged().get("args", [])
        self.first: Prepared | None = None
        self.folder: Path | None = None
        self._lock_of: Callable[[Resolved], ImageLock | None] = prepare_run.lock_of

    def planned(self, point: Point) -> Prepared:
        """The plan of a point."""
        return self.prepared(point, self.resolved(point))

    def resolved(self, point: Point) -> Resolved:
        """The job of a point. ConfigError with all its faults."""
        one = self.sources.resolve(job_keys(point, self._args), label=of_points(self.file))
        _require_single(one)
        return replace(one, job=one.job.model_copy(update={"sweep": None}))

    def prepared(self, point: Point, resolved: Resolved) -> Prepared:
        """The plan of a point whose job is known. ConfigError when the job does not fit the cluster."""
        first, folder = self._place(resolved)
        run_dir = SweepPaths(folder).point(point.index)
        here = replace(resolved, cluster=first.resolved.cluster)
        snapshot = first.site.snapshot if resolved.job.snapshot else None
        site = replace(first.site, run_id=run_dir.name, run_dir=run_dir, snapshot=snapshot)
        lock = self._lock_of(here)
        others = prepare_run.role_locks_of(here) if first.site.containers else {}
        made = plan(here, lock, site, role_locks=others)
        program_check.require(made, first.scan)
        return replace(first, plan=made, site=site, resolved=here, lock=lock)

    def _place(self, resolved: Resolved) -> tuple[Prepared, Path]:
        """The first plan, and the sweep's folder."""
        if self.first is None or self.folder is None:
            job_file, into = self.sources.job_file, self._into
            first = prepare_run.prepare_resolved(resolved, job_file, containers=self._containers, now=self._now)
            if into is not None:
                first = replace(first, site=replace(first.site, seed=into.seed))
            self.folder = first.site.run_dir.parent / (into.sweep_id if into else first.site.run_id)
            self.first, self._lock_of = first, _locks(first)
        return self.first, self.folder


def _locks(first: Prepared) -> Callable[[Resolved], ImageLock | None]:
    """A function that returns the lock of a point's image. Each image's lock is read once."""
    known = {first.resolved.job.image_name: first.lock}

    def lock_of(resolved: Resolved) -> ImageLock | None:
        image = resolved.job.image_name
        if image not in known:
            known[image] = prepare_run.lock_of(resolved) if first.site.containers else None
        return known[image]

    return lock_of
