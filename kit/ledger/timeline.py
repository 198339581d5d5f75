"""The timeline that all ranks share: from submit to the end, divided by the batch script's events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kit.files.json_lines import is_usable_number
from kit.ledger.records import Event, Records
from kit.ledger.time_accounts import Account

_PHASES = {
    "image": Account.IMAGE,
    "preflight": Account.PREFLIGHT,
    "once": Account.ONCE,
    "teardown": Account.TEARDOWN,
}


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of time that is in one account for every rank."""

    start: float
    end: float
    account: Account
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Window:
    """An attempt, from the start of the ranks to the end of the last one. Each rank divides it into accounts in its own way.

    after: the account of the time after its first failure. nodes: those with ranks.
    """

    start: float
    end: float
    attempt: int
    after: Account
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AllocatedSpan:
    """One start of a job, for the time in which it held its nodes. spare: number of nodes without ranks."""

    start: float
    end: float
    attempt: int
    spare: int


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The timeline of one run. start, end: seconds since the epoch. Spans and windows follow each other without a gap."""

    start: float
    end: float
    spans: tuple[Span, ...]
    windows: tuple[Window, ...]
    allocations: tuple[AllocatedSpan, ...]


def build(records: Records) -> Timeline:
    """Build the timeline of a run. A run without any event was in the queue all the time."""
    return _Builder(records).built()


class _Builder:
    """Processes the events in order. `_at`: the time is accounted up to here. `_state`: the account since then."""

    def __init__(self, records: Records) -> None:
        self._records = records
        events = sorted(records.events, key=lambda event: event.at)
        first = events[0].at if events else records.now or records.ended
        known = [records.submitted] if 0 < records.submitted <= (first or records.submitted) else []
        self._start = self._at = min([*known, first or records.submitted])
        self._events: Sequence[Event] = events
        self._state = Account.QUEUE
        self._attempt = 0
        self._window: tuple[float, tuple[str, ...]] | None = None
        self._held: tuple[float, int] | None = None
        self._spare = 0
        self._over = False
        self._spans: list[Span] = []
        self._windows: list[Window] = []
        self._allocations: list[AllocatedSpan] = []

    def built(self) -> Timeline:
        for event in self._events:
            # Clocks of two nodes differ, so an event may seem to come before the previous one.
            at = max(event.at, self._at)
            if event.name == "start":
                self._on_start(event, at)
            elif event.name == "attempt":
                self._on_attempt(event, at)
            elif event.name == "phase" and event.values.get("name") in _PHASES:
                self._change_state(at, _PHASES[event.values["name"]])
            elif event.name in {"requeue", "end"}:
                self._on_release(event, at)
        end = self._end()
        if self._window is not None:
            self._close_window(self._last_sign(end), Account.TEARDOWN)
        if self._over and self._allocations:
            self._allocations[-1] = replace(self._allocations[-1], end=max(self._allocations[-1].end, end))
        self._book_until(end)
        if self._held is not None:
            self._release(end)
        return Timeline(
            start=self._start,
            end=self._at,
            spans=tuple(self._spans),
            windows=tuple(self._windows),
            allocations=tuple(self._allocations),
        )

    def _end(self) -> float:
        """The end of the accounted time. A killed batch script leaves no end event; then the last sign of life is the end."""
        if self._over:
            return max(self._at, self._records.closed)
        known = self._records.now or self._records.ended
        return max(self._at, known or self._last_sign(float("inf")))

    def _last_sign(self, most: float) -> float:
        """The last known time of the open attempt, at most `most`. A live run returns `most`."""
        if self._records.now:
            return most
        signs = [one.looked for one in self._records.processes if one.attempt == self._attempt]
        signs += [one.at for one in self._records.failures if one.attempt == self._attempt]
        signs += [one.last for one in self._records.reported if one.attempt == self._attempt]
        return min(max([self._at, *signs]), most)

    def _on_start(self, event: Event, at: float) -> None:
        if self._window is not None:
            self._close_window(self._last_sign(at), Account.RESTART)
        if self._held is not None:
            # Neither an end nor a requeue event: the node was lost, and Slurm requeued the job.
            self._release(self._at)
            self._state = Account.HELD
        if self._over:
            submitted = self._records.submitted
            self._state = Account.NOT_SUBMITTED
            if self._at < submitted < at:
                self._book_until(submitted)
                self._state = Account.QUEUE
            self._over = False
        allocated = _number(event.values.get("allocated"))
        if self._at < allocated < at:
            self._book_until(allocated)
            self._state = Account.SETUP
            self._held = (allocated, event.attempt)
        self._attempt = event.attempt
        self._change_state(at, Account.SETUP)
        self._held = self._held or (at, event.attempt)

    def _on_attempt(self, event: Event, at: float) -> None:
        if self._window is not None:
            self._close_window(at, Account.RESTART)
        elif self._state is Account.TEARDOWN:
            self._state = Account.RESTART
            if self._windows and self._windows[-1].end == self._at:
                last = self._windows.pop()
                self._windows.append(
                    Window(
                        start=last.start, end=last.end, attempt=last.attempt, after=Account.RESTART, nodes=last.nodes
                    )
                )
        self._book_until(at)
        self._attempt = event.attempt
        self._spare = max(self._spare, int(_number(event.values.get("spare"))))
        nodes = tuple(name for name in event.values.get("nodes", "").split(",") if name)
        self._window = (at, nodes)

    def _change_state(self, at: float, state: Account) -> None:
        if self._window is not None:
            self._close_window(at, Account.TEARDOWN)
        self._book_until(at)
        self._state = state

    def _on_release(self, event: Event, at: float) -> None:
        requeued = event.name == "requeue"
        self._change_state(at, Account.HELD if requeued else Account.TEARDOWN)
        self._release(at)
        self._over = not requeued

    def _release(self, at: float) -> None:
        if self._held is not None:
            start, attempt = self._held
            self._allocations.append(AllocatedSpan(start=start, end=at, attempt=attempt, spare=self._spare))
        self._held, self._spare = None, 0

    def _close_window(self, at: float, after: Account) -> None:
        assert self._window is not None
        start, nodes = self._window
        at = max(at, start)
        self._windows.append(Window(start=start, end=at, attempt=self._attempt, after=after, nodes=nodes))
        self._at, self._window = at, None

    def _book_until(self, at: float) -> None:
        """Book all time until `at` in the account of the current state."""
        if at > self._at:
            self._spans.append(Span(start=self._at, end=at, account=self._state, attempt=self._attempt))
            self._at = at


def _number(value: str | None) -> float:
    """A number in an event; 0 if it is not a number."""
    return float(value) if value and is_usable_number(value) else 0.0
