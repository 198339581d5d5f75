"""The ledger: every rank-second in one account, by attempt and by node, and the published efficiency figures computed from it.

Sources. ETTR: A. Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", HPCA 2025
(arXiv:2410.21680): the productive run time of a job divided by its wall clock, including the wait in the queue. Starts, restarts
and repeated steps are unproductive. Goodput: Google's ML productivity goodput (2024) is the product of scheduling goodput (the
share of time in which all resources are available), runtime goodput (the share of that time in which training makes progress that
is kept) and program goodput (the share of the hardware's peak: MFU).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kit.ledger import rank_account, timeline
from kit.ledger.rank_account import Amounts, RankAmounts
from kit.ledger.records import Event, Rank, RankProcess, Records, Reported
from kit.ledger.time_accounts import KEPT, LOOP, NOT_HELD, Account
from kit.ledger.timeline import Window
from kit.record import resumed_from

# The detail of a ledger, from phases of each rank to only the batch script's events.
PHASES, METRICS, EVENTS = "phases", "metrics", "events"


@dataclass(frozen=True, kw_only=True)
class RankSpan:
    """A rank's seconds in one time span: an attempt's window, or a span that all ranks share. node: empty if it is not known."""

    rank: Rank
    node: str
    attempt: int
    amounts: Amounts


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The ledger of one run. wall: seconds from submit to the end. detail: 'phases', 'metrics' or 'events'; the coarsest of its
    attempts.

    mfu: program goodput, if the program reported it. gpu_seconds: the GPU-seconds that the job held.
    """

    run_id: str
    wall: float
    held: float
    ranks: int
    spare_seconds: float
    gpu_seconds: float
    detail: str
    notes: tuple[str, ...]
    shares: tuple[RankSpan, ...]
    mfu: float | None = None
    live: bool = False

    @cached_property
    def accounts(self) -> dict[Account, float]:
        """Rank-seconds of each account that is not 0, in the order of `Account`."""
        return rank_account.ordered(share.amounts for share in self.shares)

    @property
    def total(self) -> float:
        """All rank-seconds: wall x ranks, plus those of spare nodes."""
        return self.wall * self.ranks + self.spare_seconds

    @property
    def gap(self) -> float:
        """The share of the total that is in no account or in two: 0.0 except for floating-point error."""
        return abs(sum(self.accounts.values()) - self.total) / self.total if self.total else 0.0

    def share_of(self, *accounts: Account) -> float:
        """The share of the total that is in these accounts."""
        return sum(self.accounts.get(one, 0.0) for one in accounts) / self.total if self.total else 0.0

    @property
    def ettr(self) -> float:
        """Effective training time ratio: time in the training loop with its waits, without lost steps, divided
        by the wall clock.
        """
        return self.share_of(*LOOP, Account.PROGRAM)

    @property
    def scheduling_goodput(self) -> float:
        """The share of the time in which the job had its nodes."""
        return 1.0 - self.share_of(*NOT_HELD)

    @property
    def runtime_goodput(self) -> float:
        """The share of the scheduled time in steps that were kept. A program without reported phases counts completely."""
        scheduled = self.scheduling_goodput
        return self.share_of(*KEPT) / scheduled if scheduled else 0.0

    @property
    def goodput(self) -> float:
        """Scheduling goodput x runtime goodput. Multiplied by `mfu`, it is Google's product."""
        return self.scheduling_goodput * self.runtime_goodput

    def cost(self, gpu_hour: float) -> float:
        """The cost of the GPUs while the job held them."""
        return self.gpu_seconds / 3600 * gpu_hour

    def cost_of(self, account: Account, gpu_hour: float) -> float:
        """An account's part of the cost; 0 for an account of time that is not paid for."""
        held = self.total * self.scheduling_goodput
        return self.cost(gpu_hour) * self.accounts.get(account, 0.0) / held if held and account not in NOT_HELD else 0.0

    def by(self, key: str) -> dict[object, dict[Account, float]]:
        """Rank-seconds by 'attempt', 'node' or 'rank'."""
        found: defaultdict[object, list[Amounts]] = defaultdict(list)
        for share in self.shares:
            found[getattr(share, key)].append(share.amounts)
        return {name: rank_account.ordered(amounts) for name, amounts in found.items()}


def close(records: Records) -> Ledger:
    """Compute the ledger of a run."""
    line = timeline.build(records)
    wall, all_ranks = line.end - line.start, records.ranks
    nodes = _nodes(line.windows, records)
    # For time before and after all attempts, use the rank's first node.
    home = {rank: next((nodes[rank, first_window.attempt] for first_window in line.windows), "") for rank in all_ranks}
    shares = [
        RankSpan(rank=rank, node=home[rank], attempt=span.attempt, amounts={span.account: span.end - span.start})
        for span in line.spans
        for rank in all_ranks
    ]
    details = [EVENTS] if not line.windows else []
    before: dict[Rank, tuple[int, float]] = {}
    for place, window in enumerate(line.windows):
        entries = _entries(window, records, lives=bool(records.now) and place == len(line.windows) - 1)
        details.append(_detail(window, records, entries))
        # The lost steps of an attempt are known only when the next attempt reports the step from which it continues.
        shares = _with_lost(shares, before, entries)
        shares += [
            RankSpan(rank=rank, node=nodes[rank, window.attempt], attempt=window.attempt, amounts=rank_amounts.amounts)
            for rank, rank_amounts in entries.items()
        ]
        for rank, rank_amounts in entries.items():
            if rank_amounts.step is not None:
                before[rank] = (rank_amounts.step, rank_amounts.made)
    spare = 0.0
    for held in line.allocations:
        seconds = (held.end - held.start) * held.spare * records.ranks_per_node
        if seconds:
            spare += seconds
            shares.append(RankSpan(rank=("", -1), node="spare", attempt=held.attempt, amounts={Account.SPARE: seconds}))
    held_s = sum(allocation.end - allocation.start for allocation in line.allocations)
    return Ledger(
        run_id=records.run_id,
        wall=wall,
        held=held_s,
        ranks=len(all_ranks),
        spare_seconds=spare,
        gpu_seconds=held_s * records.gpus,
        detail=next((detail for detail in (EVENTS, METRICS, PHASES) if detail in details), PHASES),
        notes=_notes(records, details),
        shares=tuple(shares),
        live=bool(records.now),
    )


def together(run_id: str, several: Sequence[Ledger]) -> Ledger:
    """One ledger of several runs, such as the points of a sweep. Seconds and rank-seconds are summed; wall is the mean per rank."""
    ranks_sum = sum(ledger.ranks for ledger in several)
    rank_seconds = sum(ledger.wall * ledger.ranks for ledger in several)
    details = {ledger.detail for ledger in several}
    return Ledger(
        run_id=run_id,
        wall=rank_seconds / ranks_sum if ranks_sum else 0.0,
        held=sum(ledger.held for ledger in several),
        ranks=ranks_sum,
        spare_seconds=sum(ledger.spare_seconds for ledger in several),
        gpu_seconds=sum(ledger.gpu_seconds for ledger in several),
        detail=next((detail for detail in (EVENTS, METRICS, PHASES) if detail in details), EVENTS),
        notes=tuple(dict.fromkeys(note for ledger in several for note in ledger.notes)),
        shares=tuple(share for ledger in several for share in ledger.shares),
        live=any(ledger.live for ledger in several),
    )


def _entries(window: Window, records: Records, *, lives: bool) -> dict[Rank, RankAmounts]:
    mine: defaultdict[Rank, list[RankProcess]] = defaultdict(list)
    for process in records.processes:
        if process.attempt == window.attempt and window.start <= process.looked:
            mine[process.role, process.rank].append(process)
    failures = [ending for ending in records.failures if ending.attempt == window.attempt and ending.at >= window.start]
    # A service is stopped after the others have ended, so its end is not a failure.
    ended = [
        ending for ending in failures if not ending.alone and (ending.role in records.world or ending.at < window.end)
    ]
    failed = min((ending.at for ending in ended), default=None)
    died: defaultdict[Rank, list[float]] = defaultdict(list)
    for failure in failures:
        died[failure.role, failure.rank].append(failure.at)
    reported = next((report for report in records.reported if report.attempt == window.attempt), None)
    stepped = _role_starts(window, records)
    entries = {
        rank: rank_account.entry(
            window, mine[rank], failed=failed, died=died[rank], stepped=stepped.get(rank[0], 0.0), reported=reported, lives=lives
        )
        for rank in records.ranks
    }  # fmt: skip
    return _adjusted_across_ranks(window, entries, failed=failed, lives=lives)


def _role_starts(window: Window, records: Records) -> dict[str, float]:
    """The time when each role was first started in this attempt. Empty for a plain job, whose ranks start with the attempt."""
    found: dict[str, float] = {}
    for event in records.events:
        if event.name == "role" and window.start <= event.at <= window.end:
            found.setdefault(event.values.get("role", ""), event.at)
    return found


def _group_name(role: str) -> str:
    """The role's name without its number: roles that differ only by a number, as replica groups do, meet each other."""
    return role.rstrip("0123456789")


def _least_communication(entries: Mapping[Rank, RankAmounts]) -> dict[str, float]:
    """The least communication time of a step among the ranks of each group, in seconds. The keys are those of `_group_name`.

    Ranks with less than half of the others' steps, such as late ones, do not count.
    """
    steps: dict[str, int] = {}
    for (role, _), rank_amounts in entries.items():
        steps[_group_name(role)] = max(steps.get(_group_name(role), 0), rank_amounts.steps)
    least: dict[str, float] = {}
    for (role, _), rank_amounts in entries.items():
        name = _group_name(role)
        if rank_amounts.steps and 2 * rank_amounts.steps >= steps[name]:
            seconds = rank_amounts.amounts.get(Account.STRAGGLERS, 0.0) / rank_amounts.steps
            least[name] = min(least.get(name, float("inf")), seconds)
    return least


def _adjusted_across_ranks(
    window: Window, entries: dict[Rank, RankAmounts], *, failed: float | None, lives: bool
) -> dict[Rank, RankAmounts]:
    """Adjust amounts that depend on all ranks: the least communication is productive, and the time after the
    last rank is teardown.
    """
    stops = [rank_amounts.stop for rank_amounts in entries.values()]
    known = [stop for stop in stops if stop is not None]
    last = max(known) if known and len(known) == len(stops) and failed is None and not lives else window.end
    least = _least_communication(entries)
    adjusted = {}
    for rank, rank_amounts in entries.items():
        amounts = dict(rank_amounts.amounts)
        own = min(least.get(_group_name(rank[0]), 0.0) * rank_amounts.steps, amounts.get(Account.STRAGGLERS, 0.0))
        if own:
            amounts[Account.STRAGGLERS] -= own
            amounts[Account.PRODUCTIVE] = amounts.get(Account.PRODUCTIVE, 0.0) + own
        behind = min(window.end - last, amounts.get(Account.IDLE_END, 0.0))
        if behind > 0:
            amounts[Account.IDLE_END] -= behind
            amounts[Account.TEARDOWN] = amounts.get(Account.TEARDOWN, 0.0) + behind
        adjusted[rank] = dataclasses.replace(rank_amounts, amounts=amounts)
    return adjusted


def _with_lost(
    shares: list[RankSpan], before: Mapping[Rank, tuple[int, float]], entries: Mapping[Rank, RankAmounts]
) -> list[RankSpan]:
    """The shares with repeated steps moved to the account LOST. An attempt's last steps move first."""
    lost: dict[Rank, float] = {}
    for rank, (step, made) in before.items():
        rank_amounts = entries.get(rank)
        if rank_amounts is not None and rank_amounts.first is not None and rank_amounts.first < step:
            lost[rank] = (step - rank_amounts.first) * made
    if not lost:
        return shares
    adjusted = []
    for share in reversed(shares):
        seconds = lost.get(share.rank, 0.0)
        amounts = rank_account.moved(share.amounts, seconds, Account.LOST)
        if seconds:
            lost[share.rank] -= amounts.get(Account.LOST, 0.0) - share.amounts.get(Account.LOST, 0.0)
        adjusted.append(dataclasses.replace(share, amounts=amounts))
    return adjusted[::-1]


def _detail(window: Window, records: Records, entries: Mapping[Rank, RankAmounts]) -> str:
    if any(one.step is not None for one in entries.values()):
        return PHASES
    found: Sequence[Reported] = [one for one in records.reported if one.attempt == window.attempt]
    return METRICS if found else EVENTS


def _notes(records: Records, details: Sequence[str]) -> tuple[str, ...]:
    notes = []
    if METRICS in details:
        notes.append("attempts without reports of phases are split by rank 0's metrics.jsonl, and for all ranks alike")
    if EVENTS in details and any(event.name == "attempt" for event in records.events):
        notes.append(
            "attempts without any report are one amount: `from kit_rank import progress` splits them (docs/guides/time.md)"
        )
    if resumed := resumed_from.summary([{"event": one.name, **one.values} for one in records.events]):
        notes.append(f"the run {resumed}")
    starts = [event for event in records.events if event.name == "start"]
    if starts and not any(event.values.get("allocated") for event in starts):
        notes.append("Slurm before 23.02 does not tell the job when it was allocated: the prolog counts as queue")
    notes += [_passed_on(event) for event in records.events if event.name == "image"]
    return tuple(notes)


def _passed_on(event: Event) -> str:
    """How the nodes passed the image on to each other."""
    nodes, seconds, read = (event.values.get(key, "?") for key in ("nodes", "seconds", "store_bytes"))
    megabytes = f"{int(read) / 1e6:,.0f}" if read.isdecimal() else "?"
    return (
        f"{nodes} nodes passed the image on to each other in {seconds} s; {megabytes} MB were read from the image store"
    )


def _nodes(windows: Sequence[Window], records: Records) -> dict[tuple[Rank, int], str]:
    """The node of each rank in each attempt: from its own report, or else from its number, as ranks are laid out node by node."""
    nodes = {((one.role, one.rank), one.attempt): one.node for one in records.processes}
    for window in windows:
        for rank in records.ranks:
            place = rank[1] // max(1, records.ranks_per_node)
            known = window.nodes[place] if not rank[0] and place < len(window.nodes) else ""
            nodes.setdefault((rank, window.attempt), known)
    return nodes
