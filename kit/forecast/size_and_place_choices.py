"""The sizes and places at which a job or sweep may run, each planned: as written, [[when]] tables, other QOS rows and partitions.

A size of the user's that the cluster or the launcher refuses is kept with the reason. A QOS or partition that does not accept the
job is left out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kit import config
from kit.allocation import kilobytes, minutes
from kit.config import Sources
from kit.config.program_arguments import SEPARATOR, with_keys
from kit.errors import ConfigError, KitError, UsageError
from kit.forecast.backfill import NodeRequest
from kit.planning.plan import Plan
from kit.schema.alternative_sizes import JobSize
from kit.slurm.queue_snapshot import UNLIMITED, Amount
from kit.slurm.short_forms import expand_nodes
from kit.submission import prepare_run
from kit.submission.prepare_run import Prepared

_KEYS = {"nodes": "resources.nodes", "time": "resources.time", "qos": "qos", "partition": "slurm.partition"}


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A job file as a user names it on the command line. cluster: None for the default one."""

    job_file: Path
    cluster: str | None
    overrides: tuple[str, ...] = ()
    containers: bool = True

    def sources(self) -> Sources:
        """The job's layers. ConfigError if the file is wrong."""
        return config.read_job(config.job_path(self.job_file), cluster=self.cluster, overrides=list(self.overrides))

    def command(self, verb: str) -> str:
        """The command that gives this job to `kit submit` or `kit sweep`, for a shell."""
        words = ["kit", verb, str(self.job_file)]
        words += ["--cluster", self.cluster] if self.cluster else []
        overrides = [*self.overrides]
        at = overrides.index(SEPARATOR) if SEPARATOR in overrides else len(overrides)
        words += [word for one in overrides[:at] for word in ("--set", one)]
        words += [] if self.containers else ["--no-container"]
        return shlex.join([*words, *overrides[at:]])


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A size at one place. prepared: its plan; None if it is refused. refused: the reason. pieces: number of such jobs.

    choice: None for the job as written. sweep: its pieces are the points of a sweep. asked: the user named this size or place.
    """

    choice: JobSize | None
    pieces: int
    prepared: Prepared | None
    refused: str = ""
    sweep: bool = False
    asked: bool = True

    @property
    def request(self) -> NodeRequest:
        """The request that the scheduler sees."""
        assert self.prepared is not None
        return request_of(self.prepared.plan)

    def command(self, request: JobRequest) -> str:
        """The command that submits this size where it was planned. Empty if no single command does: pieces of a plain job."""
        if self.prepared is None or (self.pieces > 1 and not self.sweep):
            return ""
        there = replace(_at_size(request, self.choice), cluster=self.prepared.plan.cluster)
        return there.command("sweep" if self.sweep else "submit")


def as_written(request: JobRequest) -> Planned:
    """The job as its file says. ConfigError if it is wrong."""
    sources = request.sources()
    written = sources.merged()
    if written.get("stages"):
        raise UsageError(
            f"{request.job_file}: it has [stages], and a forecast is made for a single job",
            hint="name a job file that has no [stages]",
        )
    return _points(request, None) if written.get("sweep") else _planned(sources, None, containers=request.containers)


def others(
    request: JobRequest, first: Planned, *, more: tuple[JobSize, ...] = (), partitions: Sequence[str] = ()
) -> list[Planned]:
    """The other choices of a job on its cluster: sizes of the user, then places that nobody asked for.

    more: sizes in addition to the job's own. partitions: of Slurm, other than its default one.
    """
    own = first.prepared
    assert own is not None
    sources = request.sources()
    sizes = (*more, *own.plan.job.when)
    found = []
    for choice in (*sizes, *_places(own, sizes, partitions)):
        made = _points(request, choice) if first.sweep else _planned(sources, choice, containers=request.containers)
        found.append(replace(made, asked=choice in sizes))
    return found


def _at_size(request: JobRequest, choice: JobSize | None) -> JobRequest:
    """The request with the keys of a size as further `--set` options."""
    sizes = [f"{_KEYS[key]}={value}" for key, value in (_values(choice).items() if choice else ())]
    return replace(request, overrides=tuple(with_keys(request.overrides, sizes)))


def _points(request: JobRequest, choice: JobSize | None) -> Planned:
    """A sweep at a size: one piece for each point, all with the size of the first point."""
    from kit.sweeps import prepare

    if choice is not None and choice.pieces:
        return Planned(
            choice=choice,
            pieces=choice.pieces,
            prepared=None,
            refused="a sweep has as many pieces as points",
            sweep=True,
        )
    try:
        made = prepare.prepare_sources(_at_size(request, choice).sources(), containers=request.containers)
    except ConfigError as error:
        if choice is None:
            raise
        return Planned(choice=choice, pieces=1, prepared=None, refused=_short(error), sweep=True)
    return Planned(choice=choice, pieces=len(made.points), prepared=made.first, sweep=True)


def _places(own: Prepared, sizes: tuple[JobSize, ...], partitions: Sequence[str]) -> Iterator[JobSize]:
    """The cluster's other QOS rows and partitions, for the job as written and for each size that names none.

    A job whose file, QOS row or cluster names a partition stays in it.
    """
    job = own.plan.job
    if job.slurm.reservation is not None:
        return
    mine = job.qos or own.resolved.cluster.default_qos
    places = [{"qos": row} for row in own.resolved.cluster.qos if row != mine]
    places += [{"partition": name} for name in partitions if job.slurm.partition is None]
    for place in places:
        yield JobSize(**place)
        yield from (one.model_copy(update=place) for one in sizes if one.qos is None and one.partition is None)


def _planned(sources: Sources, choice: JobSize | None, *, containers: bool) -> Planned:
    if choice is None:
        return Planned(choice=None, pieces=1, prepared=prepare_run.prepare_sources(sources, containers=containers))
    point: dict[str, Any] = {}
    for key, value in _values(choice).items():
        *tables, name = _KEYS[key].split(".")
        inner = point
        for table in tables:
            inner = inner.setdefault(table, {})
        inner[name] = value
    pieces = choice.pieces or 1
    try:
        prepared = prepare_run.prepare_resolved(
            sources.resolve(point, label="[[when]]"), sources.job_file, containers=containers
        )
    except ConfigError as error:
        return Planned(choice=choice, pieces=pieces, prepared=None, refused=_short(error))
    return Planned(choice=choice, pieces=pieces, prepared=prepared)


def _values(choice: JobSize) -> Mapping[str, Any]:
    return {key: value for key in _KEYS if (value := getattr(choice, key)) is not None}


def _short(error: KitError) -> str:
    faults = error.faults if isinstance(error, ConfigError) else ()
    return "; ".join(f"{fault.key}: {fault.problem}" for fault in faults) or error.message.splitlines()[0]


def request_of(plan: Plan) -> NodeRequest:
    """A plan's job as the scheduler sees it. Constraints that are not plain words are left out, since only Slurm can read them."""
    job, allocation = plan.job, plan.allocation
    slurm = job.slurm
    avoided = {*plan.decisions.site.avoid, *expand_nodes(slurm.exclude or "")}
    limit = 60 * minutes(job.resources.time) if job.resources.time else 0
    return NodeRequest(
        nodes=plan.decisions.every_node,
        each=Amount(
            cpus=allocation.cpus_per_node,
            memory=kilobytes(allocation.memory) / 1024 if allocation.memory else 0,
            gpus=0 if plan.decisions.node.gres == "none" else allocation.gpus_per_node,
        ),
        limit=limit or UNLIMITED,
        partitions=tuple(slurm.partition.split(",")) if slurm.partition else (),
        whole_nodes=slurm.exclusive,
        only=frozenset(expand_nodes(slurm.nodelist or "")),
        never=frozenset(avoided),
        features=frozenset(
            {slurm.constraint} if slurm.constraint and slurm.constraint.replace("_", "").isalnum() else ()
        ),
    )


def can_plan(made: Plan) -> bool:
    """Whether only nodes determine the job's start, as far as the job file shows."""
    slurm, resources = made.job.slurm, made.job.resources
    simple = slurm.constraint is None or slurm.constraint.replace("_", "").isalnum()
    return simple and not (slurm.reservation or slurm.licenses or resources.switches or resources.segment)
