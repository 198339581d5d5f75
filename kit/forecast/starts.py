"""Predicts when a request would start, by a plan of the queue."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean

from kit.forecast import simulate_queue
from kit.forecast.backfill import BackfillPlan, NodeRequest
from kit.slurm.queue_snapshot import UNLIMITED, QueueSnapshot

# In seconds of waiting. Users ask for a time of which jobs take a part that nobody knows, so that an end is a worse guess than a
# start; and who goes by ends alone takes many nodes for long, and waits for the others who do (make bench-when).
_A_SECOND_OF_RUNNING = 0.25
# Fewer ended jobs say nothing of those that run.
_LEAST_SHARES = 10


@dataclass(frozen=True, kw_only=True)
class StartEstimate:
    """When a request starts, in seconds since the epoch; None: never, as the cluster is now.

    by_limits: when every job takes its whole limit. last: of the last of several pieces, else the same. ends_by: its own limit
    later.
    likely, likely_end: when jobs, this one too, use as much of their limits as those did that ended a short while ago; None where
    too few did.
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
        """What starts first comes first, unless it then runs for much longer; of what is equal in that, what ends first."""
        start, end = (self.last, self.ends_by) if self.likely_end is None else (self.likely, self.likely_end)
        if start is None or end is None:
            return UNLIMITED, UNLIMITED
        return start + _A_SECOND_OF_RUNNING * (end - start), end


class Queue:
    """A snapshot, with its plans: one by limits, one by what jobs use of them."""

    def __init__(self, seen: QueueSnapshot) -> None:
        self.seen = seen
        # A job holds its nodes for as long as it takes, so that the mean counts and not the median.
        self._share = fmean(seen.shares) if len(seen.shares) >= _LEAST_SHARES else None
        self._plans: dict[int, BackfillPlan] = {}
        self._played: dict[int, tuple[list[BackfillPlan], Iterator[BackfillPlan]]] = {}

    def start(self, wanted: NodeRequest, *, pieces: int = 1) -> StartEstimate:
        """When it starts. pieces: so many of it, beside each other."""
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
        """The first moment at which Slurm's plan, by limits as it then would be, has room for it at once."""
        tier = self._tier(wanted)
        known, rest = self._played.setdefault(tier, ([], simulate_queue.plans(self.seen, tier=tier)))
        for plan in itertools.chain(known, _kept(rest, known)):
            if plan.earliest(wanted) == plan.now:
                return plan.now
        return None

    def gap(self, wanted: NodeRequest) -> float:
        """For how many seconds from now so many nodes are free."""
        wanted = self._placed(wanted)
        return self._plan(wanted).gap(wanted)

    def _placed(self, wanted: NodeRequest) -> NodeRequest:
        """A job that names no partition goes to the default one."""
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
    """The rest of the plans, each noted as it is made."""
    for plan in plans:
        known.append(plan)
        yield plan
