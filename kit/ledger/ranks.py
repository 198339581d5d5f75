"""What one rank did in one attempt, from the last report of each of its processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kit.health import progress
from kit.ledger.accounts import Account
from kit.ledger.records import RankProcess, Reported
from kit.ledger.timeline import Window

# kit_rank's phases. What a rank communicates is split when all ranks are known: ledger.py.
_OF_PHASE = {
    "start": Account.START,
    "rendezvous": Account.RENDEZVOUS,
    "first": Account.FIRST_STEP,
    "compile": Account.FIRST_STEP,
    "data": Account.INPUT,
    "compute": Account.PRODUCTIVE,
    "communicate": Account.STRAGGLERS,
    "save": Account.SAVE,
    "evaluate": Account.EVALUATION,
    "end": Account.TEARDOWN,
}
_LOOPED = ("data", "compute", "communicate")
Amounts = Mapping[Account, float]


@dataclass(frozen=True, kw_only=True)
class RankAmounts:
    """A rank's share of a window: its amounts add up to the window's length. stop: when its last process ended; None where unknown.

    made: seconds that a step computes. step, first: of its last and its first process; None where it reported no loop.
    """

    amounts: Amounts
    stop: float | None
    made: float
    step: int | None
    first: int | None


def filled(amounts: Amounts, length: float, rest: Account) -> dict[Account, float]:
    """The amounts, scaled down where they are more than `length` seconds, else what is left in `rest`. Their sum is `length`."""
    summed = sum(amounts.values())
    if summed > length:
        return {account: value * length / summed for account, value in amounts.items()}
    found = _sums(amounts)
    found[rest] += length - summed
    return dict(found)


def entry(
    window: Window,
    processes: Sequence[RankProcess],
    *,
    failed: float | None,
    died: float | None,
    reported: Reported | None = None,
    lives: bool = False,
) -> RankAmounts:
    """A rank's share. processes: its own in this attempt. failed: when the first rank of the attempt failed.

    died: when this one did. reported: what rank 0 reported, for a rank without processes. lives: the attempt goes on.
    """
    end = window.end if failed is None else min(max(failed, window.start), window.end)
    after = {window.after: window.end - end}
    mine = sorted(processes, key=lambda one: one.began)
    if not any(one.first is not None for one in mine):
        amounts = _without_steps(window.start, end, mine, reported, lives=lives)
        return RankAmounts(amounts=_summed(amounts, after), stop=None, made=0.0, step=None, first=None)
    amounts, at, stop = _sums(), window.start, end
    for place, one in enumerate(mine):
        following = mine[place + 1].began if place + 1 < len(mine) else end
        began, stop = _lifetime(one, at, following, end, died if place + 1 == len(mine) else None)
        _add(amounts, _before(one, at, began, again=place > 0))
        _add(amounts, _spent(one, began, stop))
        at = stop
    if at < end:
        _add(amounts, {Account.IDLE_END if failed is None else window.after: end - at})
    last, first = mine[-1], mine[0]
    steps = last.step - (last.first or 0)
    return RankAmounts(
        amounts=_summed(amounts, after),
        stop=stop,
        made=last.spent.get("compute", 0.0) / steps if steps > 0 else 0.0,
        step=last.step if last.first is not None else None,
        first=first.first,
    )


def _lifetime(one: RankProcess, at: float, following: float, end: float, died: float | None) -> tuple[float, float]:
    """From when until when a process lived, within what is left of the attempt."""
    began = min(max(one.began, at), end)
    ends = [end, following]
    if one.ended:
        ends.append(one.ended)
    if died is not None and died > one.began:
        ends.append(died)
    return began, max(began, min(ends))


def _before(one: RankProcess, at: float, began: float, *, again: bool) -> Amounts:
    """From the attempt's start, or the end of the process before, to the process: the image until the node's task began."""
    if again:
        return {Account.RESTART: began - at}
    worker = min(max(one.worker, at), began) if one.worker else began
    return {Account.IMAGE: worker - at, Account.START: began - worker}


def _spent(one: RankProcess, began: float, stop: float) -> Amounts:
    """The life of a process: what it reported, what it has been doing since, and where that was too long a stall."""
    length = stop - began
    amounts = _sums()
    for name, seconds in one.spent.items():
        amounts[_OF_PHASE.get(name, Account.UNATTRIBUTED)] += seconds
    since = one.ended or one.since
    left = max(0.0, stop - since)
    if one.ended or not left:
        return filled(amounts, length, Account.TEARDOWN if one.ended else Account.UNATTRIBUTED)
    idle = one.looked - one.since
    if idle > progress.limit(one.phase, one.usual or None):
        amounts[Account.STALL] += left
        return filled(amounts, length, Account.UNATTRIBUTED)
    seen = min(left, max(0.0, idle))
    amounts[_OF_PHASE.get(one.phase, Account.UNATTRIBUTED)] += seen
    # Since the monitor's last look it went on as before.
    loop = {_OF_PHASE[name]: one.spent.get(name, 0.0) for name in (*_LOOPED, "save", "evaluate")}
    ahead = left - seen
    if one.first is not None and (summed := sum(loop.values())) > 0:
        _add(amounts, {account: seconds * ahead / summed for account, seconds in loop.items()})
    else:
        amounts[_OF_PHASE.get(one.phase, Account.UNATTRIBUTED)] += ahead
    return filled(amounts, length, Account.UNATTRIBUTED)


def _without_steps(
    start: float, end: float, mine: Sequence[RankProcess], reported: Reported | None, *, lives: bool
) -> Amounts:
    """A rank that reported no loop: rank 0's records where there are some, else its program is one amount."""
    amounts, at = _sums(), start
    if mine:
        began = min(max(mine[0].began, start), end)
        _add(amounts, _before(mine[0], start, began, again=False))
        at = began
    if reported is not None and at < reported.began < end:
        return _summed(amounts, _by_metrics(at, end, reported, lives=lives))
    known = _sums()
    for one in mine:
        for name in ("rendezvous", "compile", "save", "evaluate"):
            known[_OF_PHASE[name]] += one.spent.get(name, 0.0)
    return _summed(amounts, filled(known, end - at, Account.PROGRAM))


def _by_metrics(at: float, end: float, reported: Reported, *, lives: bool) -> Amounts:
    first = min(max(reported.first, reported.began), end)
    last = end if lives else min(max(reported.last, first), end)
    stood = {Account.SAVE: reported.save, Account.EVALUATION: reported.evaluation}
    loop = filled({account: seconds for account, seconds in stood.items() if seconds}, last - first, Account.PRODUCTIVE)
    before = {Account.START: reported.began - at}
    return _summed(before, {Account.FIRST_STEP: first - reported.began}, loop, {Account.TEARDOWN: end - last})


def ordered(several: Iterable[Amounts]) -> dict[Account, float]:
    """Their sums, in the order of a run; without what is 0."""
    found = _sums(*several)
    return {account: found[account] for account in Account if found[account]}


def moved(amounts: Amounts, seconds: float, to: Account) -> Amounts:
    """The same with up to `seconds` of productive steps in another account. Waits have causes of their own, and stay."""
    taken = min(max(0.0, seconds), amounts.get(Account.PRODUCTIVE, 0.0))
    if taken == 0.0:
        return amounts
    return _summed(amounts, {Account.PRODUCTIVE: -taken, to: taken})


def _sums(*several: Amounts) -> defaultdict[Account, float]:
    found: defaultdict[Account, float] = defaultdict(float)
    for amounts in several:
        _add(found, amounts)
    return found


def _add(into: defaultdict[Account, float], amounts: Amounts) -> None:
    for account, seconds in amounts.items():
        into[account] += seconds


def _summed(*several: Amounts) -> dict[Account, float]:
    found = _sums(*several)
    return {account: seconds for account, seconds in found.items() if seconds}
