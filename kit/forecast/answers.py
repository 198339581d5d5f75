"""Answers of `kit when`: each choice with its start, from the plan of the queue if there is one, else from Slurm's estimate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from kit import data_folders
from kit.errors import KitError, SlurmError
from kit.forecast import size_and_place_choices, time_wording
from kit.forecast.backfill import NodeRequest
from kit.forecast.size_and_place_choices import JobRequest, Planned, can_plan, request_of
from kit.forecast.starts import Queue, StartEstimate
from kit.hosts.clusters import find_host
from kit.planning.plan import Plan
from kit.schema.alternative_sizes import JobSize
from kit.slurm import client, embedded, queue_snapshot
from kit.slurm.queue_snapshot import UNLIMITED
from kit.submission.prepare_run import Prepared

By = Literal["plan", "slurm"]

# Slurm's estimate is some seconds in the future even if no job waits.
_WAITS_S = 30.0
# Slurm is asked once for each partition and size.
_MOST_PARTITIONS = 8


@dataclass(frozen=True, kw_only=True)
class WhenAnswer:
    """One choice. start: None if it is refused. slurms: Slurm's own estimate of the start, in seconds since 1970.

    gap: if the job does not start at once, this many nodes are free for `gap` seconds from now. by: where `start` comes from.
    command: submits this size; empty if no single command does.
    """

    cluster: str
    job: str
    nodes: int
    limit: float
    pieces: int
    qos: str | None
    partition: str | None
    now: float
    start: StartEstimate | None
    slurms: float | None = None
    gap: float = 0.0
    by: By = "plan"
    refused: str = ""
    command: str = ""
    as_written: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The answer for --json. Times are in UTC, in ISO 8601 form."""
        start = self.start
        return {
            "cluster": self.cluster,
            "nodes": self.nodes,
            "limit_s": None if self.limit == UNLIMITED else self.limit,
            "pieces": self.pieces,
            "qos": self.qos,
            "partition": self.partition,
            "refused": self.refused or None,
            "by": self.by,
            "start": time_wording.iso(start.by_limits) if start else None,
            "last_start": time_wording.iso(start.last) if start else None,
            "likely_start": time_wording.iso(start.likely) if start else None,
            "ends_by": time_wording.iso(start.ends_by) if start else None,
            "likely_end": time_wording.iso(start.likely_end) if start else None,
            "slurms_start": time_wording.iso(self.slurms),
            "free_now_s": None if self.gap == UNLIMITED else self.gap,
            "command": self.command or None,
        }


def ask(
    job_file: Path,
    *,
    clusters: Sequence[str | None],
    overrides: list[str],
    containers: bool = True,
    more: tuple[JobSize, ...] = (),
    say: Callable[[str], None] = lambda _: None,
) -> list[WhenAnswer]:
    """The answers of all clusters. The earliest start comes first, unless that choice then runs much longer; refused choices come
    last.

    say: with several clusters, called for each that cannot be asked. With a single cluster, its error is raised.
    """
    answers: list[WhenAnswer] = []
    for cluster in clusters:
        try:
            request = JobRequest(job_file=job_file, cluster=cluster, overrides=tuple(overrides), containers=containers)
            answers += _of_cluster(request, more)
        except KitError as error:
            if len(clusters) == 1:
                raise
            say(f"{cluster}: {error.message.splitlines()[0]}")
    return sorted(answers, key=lambda one: (one.start is None, one.start.rank if one.start else ()))


def every_cluster() -> list[str]:
    """The clusters of project, user and kit that can be asked from here."""
    return [
        name for name in data_folders.names("clusters", project_dir=data_folders.project()) if find_host(name).is_up()
    ]


def _of_cluster(request: JobRequest, more: tuple[JobSize, ...]) -> list[WhenAnswer]:
    first = size_and_place_choices.as_written(request)
    own = first.prepared
    assert own is not None
    if own.resolved.cluster.embedded and embedded.find(own.resolved.cluster_name) is None:
        name = own.resolved.cluster_name
        raise SlurmError(
            f"cluster {name!r} is not up", hint="kit cluster up" + ("" if name == "local" else f" --name {name}")
        )
    queue = Queue(queue_snapshot.read_queue(env=own.env))
    places = queue.seen.other_partitions[:_MOST_PARTITIONS]
    planned = [first, *size_and_place_choices.others(request, first, more=more, partitions=places)]
    found = [(one, _answer(one, own.plan, queue, own.env)) for one in planned]
    return [
        replace(said, command=one.command(request), as_written=one.choice is None)
        for one, said in found
        if one.asked or said.start is not None
    ]


def _answer(candidate: Planned, own: Plan, queue: Queue, env: Mapping[str, str]) -> WhenAnswer:
    plan = candidate.prepared.plan if candidate.prepared else None
    job, wanted = (plan or own).job, request_of(plan or own)
    choice = candidate.choice
    facts: dict[str, Any] = {
        "cluster": own.cluster,
        "job": job.name,
        "nodes": plan.decisions.every_node if plan else (choice and choice.nodes) or wanted.nodes,
        "limit": wanted.limit,
        "pieces": candidate.pieces,
        "qos": job.qos if plan else choice and choice.qos,
        "partition": job.slurm.partition if plan else choice and choice.partition,
        "now": queue.seen.now,
    }
    if plan is None:
        return WhenAnswer(**facts, start=None, refused=candidate.refused)
    try:
        slurms = client.test_only(plan.text_of("batch.sh"), env=env, options=plan.argv[2:-1])
    except SlurmError as error:
        return WhenAnswer(**facts, start=None, refused=" ".join(error.message.split()))
    if not queue.seen.allows(wanted.partitions, nodes=wanted.nodes, time=wanted.limit):
        return WhenAnswer(**facts, start=None, refused=_beyond(queue, wanted))
    planned = start_of(queue, plan, slurms, pieces=candidate.pieces)
    return WhenAnswer(
        **facts,
        start=planned[0],
        by=planned[1],
        slurms=slurms.time if slurms else None,
        gap=queue.gap(wanted) if planned[1] == "plan" else 0.0,
    )


def _beyond(queue: Queue, wanted: NodeRequest) -> str:
    """The limits that a request exceeds. sbatch accepts such a job, which then waits for ever."""
    limits = []
    for name in sorted({*(wanted.partitions or [queue.seen.default])} & queue.seen.limits.keys()):
        most = queue.seen.limits[name]
        words = [time_wording.counted(int(most.nodes), "node")] if most.nodes != UNLIMITED else []
        words += [time_wording.span(most.time)] if most.time != UNLIMITED else []
        limits.append(f"partition {name} gives a job at most {' and '.join(words)}")
    return ", ".join(limits)


def start_of(
    queue: Queue, made: Plan, slurms: client.ExpectedStart | None, *, pieces: int = 1
) -> tuple[StartEstimate, By]:
    """The start of a plan's job, and the source of this estimate."""
    wanted = request_of(made)
    if can_plan(made) and not queue.seen.hidden:
        found = queue.start(wanted, pieces=pieces)
        if found.by_limits is not None:
            return found, "plan"
    at = max(slurms.time, queue.seen.now) if slurms else None
    return StartEstimate(by_limits=at, last=at, ends_by=at + wanted.limit if at else None), "slurm"


def at_submit(prepared: Prepared, slurms: client.ExpectedStart | None) -> WhenAnswer | None:
    """The start of a job that is about to be submitted. The queue is read only if Slurm says that the job will wait."""
    plan, wanted = prepared.plan, request_of(prepared.plan)
    now = time.time()
    if slurms is None:
        return None
    by: By = "plan"
    start = StartEstimate(by_limits=now, last=now, ends_by=now + wanted.limit)
    if slurms.time > now + _WAITS_S:
        try:
            start, by = start_of(Queue(queue_snapshot.read_queue(env=prepared.env)), plan, slurms)
        except SlurmError:
            return None
    return WhenAnswer(
        cluster=plan.cluster,
        job=plan.job.name,
        nodes=plan.decisions.every_node,
        limit=wanted.limit,
        pieces=1,
        qos=plan.job.qos,
        partition=plan.job.slurm.partition,
        now=now,
        start=start,
        slurms=slurms.time,
        by=by,
    )


def size_of(answer: WhenAnswer, *, several: bool = False) -> str:
    """The size and place of an answer in words. several: there are answers for several clusters, so this one's is named."""
    limit = f" for {time_wording.span(answer.limit)}" if answer.limit != UNLIMITED else ", no time limit"
    pieces = f"{answer.pieces} pieces of " if answer.pieces > 1 else ""
    place = [f"on {answer.cluster}"] if several else []
    place += [f"QOS {answer.qos}"] if answer.qos else [f"partition {answer.partition}"] if answer.partition else []
    return ", ".join([f"{pieces}{time_wording.counted(answer.nodes, 'node')}{limit}", *place])


def line(answer: WhenAnswer, *, several: bool = False) -> str:
    """An answer as a sentence. several: as in `size_of`."""
    size, start = size_of(answer, several=several), answer.start
    if start is None:
        return f"{size}: refused: {answer.refused}"
    if start.by_limits is None:
        return f"{size}: no start is known"
    begins = time_wording.moment(start.by_limits, answer.now)
    if answer.pieces > 1:
        if start.last is None:
            return f"{size}: the first starts {begins}, the last at no known time"
        together = start.last - start.by_limits < 60
        begins = (
            f"all at once, {begins}"
            if together
            else f"the first {begins}, the last {time_wording.moment(start.last, answer.now)}"
        )
        return f"{size}: {begins}"
    text = f"{size}: starts {begins}"
    if start.likely is not None and start.by_limits - start.likely > 60:
        text += f" at the latest, likely {time_wording.moment(start.likely, answer.now)}"
    if start.ends_by is not None and start.ends_by != UNLIMITED:
        text += f"; ends by {time_wording.moment(start.ends_by, answer.now).removeprefix('at ')}"
    return text + (" (Slurm's own estimate)" if answer.by == "slurm" else "")
