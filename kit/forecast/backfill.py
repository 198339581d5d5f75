"""A plan of the queue, made as Slurm's backfill scheduler makes its own.

The rules are those of sched/backfill (slurm.conf(5), SchedulerParameters): a running job holds its nodes until its limit. Waiting
jobs are processed by priority; each gets the earliest time at which enough nodes are free for the length of its limit, and these
nodes are reserved for it. A new job comes last. The plan cannot know of later jobs with a higher priority, nor of jobs that end
before their limit. So a start by limits is more often too late than too early.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import or_

from kit.slurm.queue_snapshot import UNLIMITED, Amount, QueueNode, QueueSnapshot, WaitingJob

# Slurm also considers this many waiting jobs (bf_max_job_test).
_MOST = 1000


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """A job as the scheduler sees it. each: resources on each node. limit: seconds.

    partitions: the job may use any of them; empty: every node. only, never: names of nodes. features: each node must have all of
    them.
    """

    nodes: int
    each: Amount
    limit: float
    partitions: tuple[str, ...] = ()
    whole_nodes: bool = False
    only: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()

    @property
    def kind(self) -> NodeRequest:
        """The part that determines which nodes it can use, independent of its size."""
        return replace(self, nodes=0, limit=0.0)


def request_of(job: WaitingJob) -> NodeRequest:
    """The request of a waiting job."""
    return NodeRequest(
        nodes=job.nodes, each=job.each, limit=job.limit, partitions=job.partitions, whole_nodes=job.whole_nodes
    )


class BackfillPlan:
    """Reservations of nodes for jobs over time. A set of nodes is a bit mask, as in Slurm."""

    def __init__(self, seen: QueueSnapshot, *, tier: int = 0) -> None:
        """tier: of the partition that the new job asks for. Jobs that wait in partitions of lower tiers come after it."""
        self.now = seen.now
        self._nodes = seen.nodes
        self._held = _held(seen)
        self._times = [seen.now]  # times at which something changes, in order
        self._kept = {seen.now: 0}  # time -> nodes reserved for waiting jobs until the next time
        self._free_at: dict[NodeRequest, tuple[list[float], list[int]]] = {}
        self._no_earlier: dict[tuple[NodeRequest, int, float], float] = {}
        for end in {end for ends in self._held.values() for end, _ in ends if end < UNLIMITED}:
            self._insert_time(end)
        # Each waiting job that gets nodes, with its start and its nodes.
        self.placed: list[tuple[WaitingJob, float, int]] = []
        for job in [one for one in seen.waiting if one.tier >= tier][:_MOST]:
            found = self._reserve_earliest(request_of(job))
            if found is not None:
                self.placed.append((job, *found))

    def copy(self) -> BackfillPlan:
        """A copy of the plan, for reserving nodes for jobs that may never be submitted."""
        made = object.__new__(BackfillPlan)
        made.__dict__ = {**self.__dict__, "_times": [*self._times], "_kept": {**self._kept}}
        made._no_earlier = dict(self._no_earlier)
        return made

    def take(self, wanted: NodeRequest) -> float | None:
        """The earliest start. Its nodes are reserved from now on. None if there are never enough nodes."""
        found = self._reserve_earliest(wanted)
        return found[0] if found else None

    def _reserve_earliest(self, wanted: NodeRequest) -> tuple[float, int] | None:
        found = self._find_earliest(wanted)
        if found is None:
            return None
        start, free = found
        nodes = _lowest(free, wanted.nodes)
        self._reserve(start, start + wanted.limit, nodes)
        # A later job of the same kind and size does not start earlier.
        self._no_earlier[wanted.kind, wanted.nodes, wanted.limit] = start
        return start, nodes

    def names(self, nodes: int) -> tuple[str, ...]:
        """The names of a set of nodes."""
        return tuple(node.name for bit, node in enumerate(self._nodes) if nodes >> bit & 1)

    def earliest(self, wanted: NodeRequest) -> float | None:
        """The earliest start, without reserving nodes. None if there are never enough nodes."""
        found = self._find_earliest(wanted)
        return found[0] if found else None

    def gap(self, wanted: NodeRequest) -> float:
        """The seconds for which this many nodes stay free from now: infinite if no job waits for them, 0 if they are not free."""
        free = self._usable(wanted.kind, self.now)
        for place, start in enumerate(self._times):
            free &= ~self._kept[start]
            if free.bit_count() < wanted.nodes:
                return self._times[place] - self.now
        return UNLIMITED

    def _find_earliest(self, wanted: NodeRequest) -> tuple[float, int] | None:
        first = self._no_earlier.get((wanted.kind, wanted.nodes, wanted.limit), self.now)
        for start in self._times[bisect_left(self._times, first) :]:
            free = self._usable(wanted.kind, start)
            if free.bit_count() < wanted.nodes:
                continue
            free &= ~self._kept_within(start, start + wanted.limit)
            if free.bit_count() >= wanted.nodes:
                return start, free
        return None

    def _kept_within(self, start: float, end: float) -> int:
        found = 0
        for time in self._times[bisect_left(self._times, start) :]:
            if time >= end:
                break
            found |= self._kept[time]
        return found

    def _reserve(self, start: float, end: float, nodes: int) -> None:
        self._insert_time(start)
        if end < UNLIMITED:
            self._insert_time(end)
        for time in self._times[bisect_left(self._times, start) :]:
            if time >= end:
                break
            self._kept[time] |= nodes

    def _insert_time(self, time: float) -> None:
        """Insert a time at which something changes."""
        if time in self._kept:
            return
        place = bisect_left(self._times, time)
        self._kept[time] = self._kept[self._times[place - 1]] if place else 0
        insort(self._times, time)

    def _usable(self, kind: NodeRequest, time: float) -> int:
        """Nodes on which running jobs leave enough for a request of this kind, from this time on."""
        if kind not in self._free_at:
            self._free_at[kind] = self._usable_times(kind)
        times, usable = self._free_at[kind]
        place = bisect_right(times, time)
        return usable[place - 1] if place else 0

    def _usable_times(self, kind: NodeRequest) -> tuple[list[float], list[int]]:
        """The times at which nodes become usable, and all nodes that are usable from each time on."""
        nodes_by_time: dict[float, int] = {}
        for bit, node in enumerate(self._nodes):
            if _may_use(node, kind):
                since = self._free_since(node, kind)
                if since < UNLIMITED:
                    nodes_by_time[since] = nodes_by_time.get(since, 0) | 1 << bit
        times = sorted(nodes_by_time)
        return times, list(accumulate((nodes_by_time[time] for time in times), or_))

    def _free_since(self, node: QueueNode, kind: NodeRequest) -> float:
        wanted = replace(node.whole, memory=0.0) if kind.whole_nodes else kind.each
        ends = self._held.get(node.name, [])
        left = node.whole
        for _, held in ends:
            left = left.minus(held)
        since = self.now
        if kind.whole_nodes:
            return max((end for end, _ in ends), default=since)
        for end, held in ends:
            if wanted.fits(left):
                break
            left, since = left.plus(held), end
        return since if wanted.fits(left) else UNLIMITED


def _held(seen: QueueSnapshot) -> dict[str, list[tuple[float, Amount]]]:
    """Node -> the end of each job on it, and the resources that become free then; earliest first."""
    releases: dict[str, list[tuple[float, Amount]]] = {}
    for job in seen.running:
        for node in job.nodes:
            releases.setdefault(node, []).append((job.end, job.each))
    for ends in releases.values():
        ends.sort(key=lambda one: one[0])
    return releases


def _may_use(node: QueueNode, kind: NodeRequest) -> bool:
    in_partition = not kind.partitions or bool(node.partitions.intersection(kind.partitions))
    named = (not kind.only or node.name in kind.only) and node.name not in kind.never
    return node.usable and in_partition and named and kind.features <= node.features and kind.each.fits(node.whole)


def _lowest(nodes: int, count: int) -> int:
    """A number of nodes from a set, those with the lowest bits first."""
    found = 0
    for _ in range(count):
        one = nodes & -nodes
        found |= one
        nodes ^= one
    return found
