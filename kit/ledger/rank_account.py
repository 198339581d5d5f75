"""Accounts of one rank in one attempt, from the last report of each of its processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kit.health import progress
from kit.ledger.records import RankProcess, Reported
from kit.ledger.time_accounts import Account
from kit.ledger.timeline import Window

# kit_rank's phases. ledger.py splits the communication time later, when all ranks are known.
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
    """A rank's part of a window: its amounts add up to the window's length. stop: the end of its last process; None if unknown.

    made: seconds to compute a step. step: of its last process. first: of its first process. Both are None if it reported no loop.
    steps: the total over all its processes.
    """

    amounts: Amounts
    stop: float | None
    made: float
    step: int | None
    first: int | None
    steps: int = 0


def filled(amounts: Amounts, length: float, rest: Account) -> dict[Account, float]:
    """Fill up to `length` seconds: put the missing time in `rest`, or scale the amounts down if they exceed `length`."""
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
    died: Sequence[float] = (),
    stepped: float = 0.0,
    reported: Reported | None = None,
    lives: bool = False,
) -> RankAmounts:
    """Divide the seconds of one rank in one window among the accounts.

    processes: the rank's own in this attempt. failed: the time of the failure that ended the attempt. died: the times when this
    rank failed. stepped: the time when its role was started; 0 if it started with the attempt. reported: rank 0's report, used for
    a rank without processes. lives: whether the attempt still runs.
    """
    end = window.end if failed is None else min(max(failed, window.start), window.end)
    after = {window.after: window.end - end}
    mine = sorted(processes, key=lambda process: process.began)
    if not any(process.first is not None for process in mine):
        amounts = _without_steps(window.start, end, mine, reported, stepped=stepped, lives=lives)
        return RankAmounts(amounts=_summed(amounts, after), stop=None, made=0.0, step=None, first=None)
    amounts, at, stop = _sums(), window.start, end
    for place, process in enumerate(mine):
        following = mine[place + 1] if place + 1 < len(mine) else None
        began, stop = _lifetime(process, at, following.began if following else end, end, died)
        _add(amounts, _restarted(began - at) if place else _before(process, at, began, stepped))
        _add(amounts, moved(_spent(process, began, stop), _repeated_seconds(process, following), Account.LOST))
        at = stop
    if at < end:
        _add(amounts, {Account.IDLE_END if failed is None else window.after: end - at})
    last, first = mine[-1], mine[0]
    return RankAmounts(
        amounts=_summed(amounts, after),
        stop=stop,
        made=_step_s(last),
        step=last.step if last.first is not None else None,
        first=first.first,
        steps=sum(max(0, process.step - process.first) for process in mine if process.first is not None),
    )


def _step_s(one: RankProcess) -> float:
    """Seconds that this process computes for a step; 0 if it made none. The first step has its own account."""
    steps = one.step - (one.first or 0) - (1 if one.spent.get("first", 0.0) > 0 else 0)
    return one.spent.get("compute", 0.0) / steps if steps > 0 else 0.0


def _repeated_seconds(one: RankProcess, following: RankProcess | None) -> float:
    """Seconds of this process's steps that the rank's next process in the same attempt repeats."""
    if following is None or following.first is None or one.first is None:
        return 0.0
    return max(0, one.step - max(following.first, one.first)) * _step_s(one)


def _lifetime(one: RankProcess, at: float, following: float, end: float, died: Sequence[float]) -> tuple[float, float]:
    """Start and end of a process, within the remaining time of the attempt."""
    began = min(max(one.began, at), end)
    ends = [end, following, *(when for when in died if when > one.began)]
    if one.ended:
        ends.append(one.ended)
    return began, max(began, min(ends))


def _restarted(seconds: float) -> Amounts:
    """The time from the end of a process to the start of the rank's next one."""
    return {Account.RESTART: seconds}


def _before(one: RankProcess, at: float, began: float, stepped: float) -> Amounts:
    """The time from the attempt's start to the process: waiting for other roles, then the image until the task begins, then the
    start.
    """
    waited = min(max(stepped, at), began)
    worker = min(max(one.worker, waited), began) if one.worker else began
    return {Account.RENDEZVOUS: waited - at, Account.IMAGE: worker - waited, Account.START: began - worker}


def _spent(process: RankProcess, began: float, stop: float) -> Amounts:
    """The lifetime of a process: the phases that it reported, and its current phase, which may be a stall."""
    length = stop - began
    amounts = _sums()
    for name, seconds in process.spent.items():
        amounts[_OF_PHASE.get(name, Account.UNATTRIBUTED)] += seconds
    since = process.ended or process.since
    left = max(0.0, stop - since)
    if process.ended or not left:
        return filled(amounts, length, Account.TEARDOWN if process.ended else Account.UNATTRIBUTED)
    idle = process.looked - process.since
    if idle > progress.limit(process.phase, process.usual or None):
        amounts[Account.STALL] += left
        return filled(amounts, length, Account.UNATTRIBUTED)
    seen = min(left, max(0.0, idle))
    amounts[_OF_PHASE.get(process.phase, Account.UNATTRIBUTED)] += seen
    # After the monitor's last look, assume that the process continued in the same proportions.
    loop = {_OF_PHASE[name]: process.spent.get(name, 0.0) for name in (*_LOOPED, "save", "evaluate")}
    ahead = left - seen
    if process.first is not None and (summed := sum(loop.values())) > 0:
        _add(amounts, {account: seconds * ahead / summed for account, seconds in loop.items()})
    else:
        amounts[_OF_PHASE.get(process.phase, Account.UNATTRIBUTED)] += ahead
    return filled(amounts, length, Account.UNATTRIBUTED)


def _without_steps(
    start: float, end: float, mine: Sequence[RankProcess], reported: Reported | None, *, stepped: float, lives: bool
) -> Amounts:
    """A rank that reported no loop: use rank 0's metrics if there are any; otherwise the program is one amount."""
    amounts, at = _sums(), start
    if mine:
        began = min(max(mine[0].began, start), end)
        _add(amounts, _before(mine[0], start, began, stepped))
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
    """The sum of several amounts for each account, in the order of `Account`, without accounts that are 0."""
    found = _sums(*several)
    return {account: found[account] for account in Account if found[account]}


def moved(amounts: Amounts, seconds: float, to: Account) -> Amounts:
    """Move up to `seconds` of productive steps to another account. Waits have their own causes and stay."""
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
