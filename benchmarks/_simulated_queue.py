"""A cluster without a clock: jobs come, start and end in a few minutes of arithmetic.

Jobs start as the kit's own plan of the queue has it, each time that one comes or ends: what `kit when` has wrong about Slurm's
scheduler this cannot show, and the embedded cluster does. It shows what a choice is worth over more jobs than there is time for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks._workload import TraceJob
from kit.forecast.backfill import BackfillPlan
from kit.slurm.queue_snapshot import Amount, QueueNode, QueueSnapshot, RunningJob, WaitingJob

# Slurm forgets jobs that ended longer ago (MinJobAge).
_REMEMBERED_S = 300.0


@dataclass(kw_only=True)
class SimulatedJob:
    """One job, at the size at which it was submitted. Times: seconds from the first job's."""

    size: TraceJob
    submitted: float
    started: float = 0.0
    ended: float = 0.0
    nodes: tuple[str, ...] = ()

    @property
    def wait(self) -> float:
        """Seconds."""
        return self.started - self.submitted

    @property
    def span(self) -> float:
        """Seconds from the submit to the end."""
        return self.ended - self.submitted

    @property
    def limit(self) -> float:
        """Seconds."""
        return 60.0 * self.size.limit

    @property
    def run(self) -> float:
        """Seconds that it takes: Slurm ends it at its limit."""
        return min(self.size.run, self.limit)


class SimulatedCluster:
    """So many nodes, which no two jobs share."""

    def __init__(self, nodes: int, *, cpus: int) -> None:
        self.now = 0.0
        self.running: list[SimulatedJob] = []
        self.waiting: list[SimulatedJob] = []
        self.done: list[SimulatedJob] = []
        self._names = [f"n{number}" for number in range(nodes)]
        self._whole = Amount(cpus=cpus, memory=1000.0)

    def play(self, trace: Sequence[TraceJob], choose: Callable[[TraceJob, QueueSnapshot], TraceJob]) -> None:
        """All jobs to their ends. choose: the size at which one is submitted, by the queue as it then is."""
        coming = list(trace)
        while coming or self.running or self.waiting:
            self.now = min([job.started + job.run for job in self.running] + [job.at for job in coming[:1]])
            for job in [job for job in self.running if job.started + job.run <= self.now]:
                self.running.remove(job)
                job.ended = self.now
                self.done.append(job)
            while coming and coming[0].at <= self.now:
                size = choose(coming.pop(0), self.snapshot())
                self.waiting.append(SimulatedJob(size=size, submitted=self.now))
                self._start()
            self._start()

    def snapshot(self) -> QueueSnapshot:
        """The queue, as sinfo and squeue would tell of it."""
        taken = {name for job in self.running for name in job.nodes}
        return QueueSnapshot(
            now=self.now,
            nodes=tuple(
                QueueNode(
                    name=name,
                    whole=self._whole,
                    taken_cpus=self._whole.cpus if name in taken else 0,
                    usable=True,
                    partitions=frozenset({"main"}),
                )
                for name in self._names
            ),
            running=tuple(
                RunningJob(
                    nodes=job.nodes,
                    each=self._whole,
                    end=job.started + job.limit,
                    limit=job.limit,
                    used=self.now - job.started,
                )
                for job in self.running
            ),
            waiting=tuple(
                WaitingJob(
                    nodes=job.size.nodes, each=Amount(cpus=1), limit=job.limit, partitions=("main",), whole_nodes=True
                )
                for job in self.waiting
            ),
            shares=tuple(max(1.0, job.run) / job.limit for job in self.done if self.now - job.ended < _REMEMBERED_S),
            tiers={"main": 1},
            default="main",
        )

    def _start(self) -> None:
        plan = BackfillPlan(self.snapshot())
        assert len(plan.placed) == len(self.waiting), "every job fits the cluster"
        for job, (_, start, nodes) in zip(list(self.waiting), plan.placed, strict=True):
            if start <= self.now:
                self.waiting.remove(job)
                job.started, job.nodes = self.now, plan.names(nodes)
                self.running.append(job)
