"""Simulates a cluster without a clock: jobs come, start and end in a few minutes of arithmetic.

Jobs start by the kit's own plan of the queue, which is made anew whenever a job comes or ends. So this cannot show errors of
`kit when` about Slurm's scheduler; the embedded cluster does. It shows the value of a choice over more jobs than could be run.
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
    """One job, at the size at which it was submitted. Times are seconds from the first job's submit."""

    size: TraceJob
    submitted: float
    started: float = 0.0
    ended: float = 0.0
    nodes: tuple[str, ...] = ()

    @property
    def wait(self) -> float:
        """The wait in seconds."""
        return self.started - self.submitted

    @property
    def span(self) -> float:
        """Seconds from the submit to the end."""
        return self.ended - self.submitted

    @property
    def limit(self) -> float:
        """The time limit in seconds."""
        return 60.0 * self.size.limit

    @property
    def run(self) -> float:
        """The run time in seconds. Slurm ends the job at its limit."""
        return min(self.size.run, self.limit)


class SimulatedCluster:
    """A cluster of a number of nodes. Jobs do not share nodes."""

    def __init__(self, nodes: int, *, cpus: int) -> None:
        self.now = 0.0
        self.running: list[SimulatedJob] = []
        self.waiting: list[SimulatedJob] = []
        self.done: list[SimulatedJob] = []
        self._names = [f"n{number}" for number in range(nodes)]
        self._whole = Amount(cpus=cpus, memory=1000.0)

    def play(self, trace: Sequence[TraceJob], choose: Callable[[TraceJob, QueueSnapshot], TraceJob]) -> None:
        """Run all jobs to their ends. choose: returns the size at which to submit a job, from the queue at that time."""
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
        """The queue, as sinfo and squeue would report it."""
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
