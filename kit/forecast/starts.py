"""Predicts the start of a request, from a plan of the queue."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean

from kit.forecast import simulate_queue
from kit.forecast.backfill import BackfillPlan, NodeRequest
from kit.slurm.queue_snapshot import UNLIMITED, QueueSnapshot

# One second of running counts like this many seconds of waiting. Jobs use an unknown part of their limit, so an end is a less
# certain guess than a start. Choosing only by ends would also take many nodes for a long time, and wait for others who do the same
# (make bench-when).
_A_SECOND_OF_RUNNING = 0.25
# Fewer ended jobs say nothing about the running ones.
_LEAST_SHARES = 10


@dataclass(frozen=True, kw_only=True)
class StartEstimate:
    """The estimated start and end of a request, in seconds since the epoch. None: it cannot start on the cluster as it is now.

    by_limits: start if every job runs to its time limit. last: the same for the last of several pieces; by_limits for one
    piece. ends_by: last plus its time limit. likely, likely_end: start and end if jobs use as much of their limit as recent
    jobs did; None with too few recent jobs, and likely_end also for several pieces.
    """

    by_limits: float | None
    last: float | None
    ends_by: float | None
    likely: float | None = None
    likely_end: float | None = None

    @property
    def expected(self) -> float | None:
        """The better guess of the start."""
        return self.by_limits if self.likely is None else self.likely

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key: the earliest start first, unless that request then runs much longer; among equals, the earliest end."""
        start, end = (self.last, self.ends_by) if self.likely_end is None else (self.likely, self.likely_end)
        if start is None or end is None:
            return UNLIMITED, UNLIMITED
        return start + _A_SECOND_OF_RUNNING * (end - start), end


class Queue:
    """A snapshot of the queue with its plans: by limits, and by the likely use of limits."""

    def __init__(self, seen: QueueSnapshot) -> None:
        self.seen = seen
        # Use the mean, not the median: a job holds its nodes for as long as it takes.
        self._share = fmean(seen.shares) if len(seen.shares) >= _LEAST_SHARES else None
        self._plans: dict[int, BackfillPlan] = {}
        self._played: dict[int, tuple[list[BackfillPlan], Iterator[BackfillPlan]]] = {}

    def start(self, wanted: NodeRequest, *, pieces: int = 1) -> StartEstimate:
        """The start of a request. pieces: the number of such jobs, which may run at the same time."""
        wanted = self._placed(wanted)
        times = self._starts(wanted, pieces)
        first, last = times[0], None if None in times else times[-1]
        ends_by = None if last is None else last + wanted.limit
        likely = self._likely(wanted) if first is not None and self._share is not None else None
        if likely is None or first is None:
            return StartEstimate(by_limits=first, last=last, ends_by=ends_by)
        likely = min(likely, first)
        end = likely + wanted.limit * (self._share or 1.0) if pieces == 1 else None
        return StartEstimate(by_limits=first, last=last, ends_by=ends_by, likely=likely, likely_end=end)

    def _likely(self, wanted: NodeRequest) -> float | None:
        """The first time at which Slurm's plan, made by limits at that time, could start the request at once."""
        tier = self._tier(wanted)
        known, rest = self._played.setdefault(tier, ([], simulate_queue.plans(self.seen, tier=tier)))
        for plan in itertools.chain(known, _kept(rest, known)):
            if plan.earliest(wanted) == plan.now:
                return plan.now
        return None

    def gap(self, wanted: NodeRequest) -> float:
        """For how many seconds from now this many nodes are free."""
        wanted = self._placed(wanted)
        return self._plan(wanted).gap(wanted)

    def _placed(self, wanted: NodeRequest) -> NodeRequest:
        """A request without a partition goes to the default one."""
        if wanted.partitions or self.seen.default is None:
            return wanted
        return replace(wanted, partitions=(self.seen.default,))

    def _starts(self, wanted: NodeRequest, pieces: int) -> list[float | None]:
        plan = self._plan(wanted)
        if pieces == 1:
            return [plan.earliest(wanted)]
        plan = plan.copy()
        return [plan.take(wanted) for _ in range(pieces)]

    def _plan(self, wanted: NodeRequest) -> BackfillPlan:
        tier = self._tier(wanted)
        if tier not in self._plans:
            self._plans[tier] = BackfillPlan(self.seen, tier=tier)
        return self._plans[tier]

    def _tier(self, wanted: NodeRequest) -> int:
        return max((self.seen.tiers.get(name, 1) for name in wanted.partitions), default=1)


def _kept(plans: Iterator[BackfillPlan], known: list[BackfillPlan]) -> Iterator[BackfillPlan]:
    """The remaining plans; each is added to `known` when it is made."""
    for plan in plans:
        known.append(plan)
        yield plan
