"""Simulates the queue: each job ends at its likely time, and after each end Slurm plans again by limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from kit.forecast.backfill import BackfillPlan
from kit.slurm.queue_snapshot import UNLIMITED, Amount, QueueSnapshot, RunningJob

# The maximum number of placed jobs. It limits the time to some seconds for a queue of any length.
_MOST_PLACED = 20_000
# Jobs that end within a second of each other end together.
_TOGETHER_S = 1.0


def plans(seen: QueueSnapshot, *, tier: int = 0) -> Iterator[BackfillPlan]:
    """Slurm's plan now, and after each likely end, until no job runs. The snapshot must have shares."""
    share = fmean(seen.shares)
    running = [(job, likely_end(job, seen.now, seen.shares)) for job in seen.running]
    waiting = [job for job in seen.waiting if job.tier >= tier]
    now, placed = seen.now, 0
    while placed <= _MOST_PLACED:
        state = replace(seen, now=now, running=tuple(job for job, _ in running), waiting=tuple(waiting))
        plan = BackfillPlan(state)
        yield plan
        placed += len(waiting) + 1
        for job, start, nodes in plan.placed:
            if start <= now:
                waiting.remove(job)
                begun = RunningJob(
                    nodes=plan.names(nodes), each=job.each, end=now + job.limit, limit=job.limit, used=0.0
                )
                if job.whole_nodes:
                    begun = replace(begun, each=_whole(seen, begun.nodes[0]))
                running.append((begun, now + job.limit * share))
        ends = [end for _, end in running if end < UNLIMITED]
        if not ends:
            return
        now = max(now, min(ends)) + _TOGETHER_S
        running = [(job, end) for job, end in running if end > now]


def likely_end(job: RunningJob, now: float, shares: Sequence[float]) -> float:
    """The likely end of a running job: the mean over ended jobs that, with its limit, would still be running now."""
    if job.limit in {0.0, UNLIMITED} or job.end <= now:
        return job.end
    longer = [share * job.limit for share in shares if share * job.limit > job.used]
    return min(job.end, now + fmean(longer) - job.used) if longer else job.end


def _whole(seen: QueueSnapshot, name: str) -> Amount:
    return next(node.whole for node in seen.nodes if node.name == name)
