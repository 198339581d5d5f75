"""The first screen of a run's report: did it work, how good is it, what did it cost, what next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kit.ledger.time_accounts import Account

_BAD = frozenset({"FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "LOST", "UNREADABLE"})
# A form for each kind of state, so that the state needs no colour to be seen.
MARKS = {"good": "✓", "bad": "✗", "live": "▶", "calm": "•"}
_WORDS = {"COMPLETED": "It worked", "RUNNING": "Runs now", "PENDING": "Waits in the queue", "CANCELLED": "Cancelled"}
# Accounts that count as goodput: a program that reports no phases is one amount.
_KEPT = frozenset({str(Account.PRODUCTIVE), str(Account.PROGRAM)})
_WIDE, _HIGH = 120.0, 28.0


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A loss of the run. last, best: with the step of each. spark: points of a polyline in a box of 120 x 28, '' for one value."""

    name: str
    last: str
    best: str
    spark: str


@dataclass(frozen=True, kw_only=True)
class Headline:
    """What the first screen shows. kind: good, bad, live or calm. share: the goodput, 0 to 1, and kept: of what.
    most: the largest account that is not in it.
    """

    kind: str
    mark: str
    words: str
    figures: Sequence[Figure]
    wall: str
    gpu_hours: str
    share: float
    kept: str
    most: str


def make_headline(run: Mapping[str, Any]) -> Headline:
    """The headline of a run of report.json."""
    kind = kind_of(run["facts"]["state"])
    closed = run["ledger"]
    accounts = {name: s for name, s in closed["accounts_rank_s"].items() if name not in _KEPT}
    whole = str(Account.PROGRAM) in closed["accounts_rank_s"] and closed["accounts_rank_s"][str(Account.PROGRAM)] > 0
    name, seconds = max(accounts.items(), key=lambda pair: pair[1], default=("", 0.0))
    total = closed["total_rank_s"]
    figures = [
        _figure(name, run[key], run["best"].get(key)) for key, name in (("loss", "loss"), ("eval", "validation loss"))
    ]
    return Headline(
        kind=kind,
        mark=MARKS[kind],
        words=_WORDS.get(run["facts"]["state"], "It did not work" if kind == "bad" else run["facts"]["state"].lower()),
        figures=[one for one in figures if one is not None],
        wall=duration(closed["wall_s"]),
        gpu_hours=f"{closed['gpu_hours']:,.2f}" if closed["gpu_hours"] else "",
        share=closed["goodput"],
        kept="time in the program" if whole else "steps that were kept",
        most=f"{name} took {seconds / total:.0%}" if total and seconds / total >= 0.01 else "",
    )


def kind_of(state: str) -> str:
    """good, bad, live, or calm for all other states."""
    if state == "COMPLETED":
        return "good"
    return "bad" if state in _BAD else "live" if state == "RUNNING" else "calm"


def duration(seconds: float) -> str:
    """`42 s`, `8 min 20 s`, `3 h 5 min`, `2 d 4 h`."""
    whole = round(seconds)
    for size, name, below, rest in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // below} {rest}"
    return f"{whole} s"


def _figure(name: str, curve: Sequence[Sequence[float | None]], best: Sequence[float | None] | None) -> Figure | None:
    if not curve:
        return None
    step, last = curve[-1]
    points = [(at, value) for at, value in curve if at is not None and value is not None]
    # The report has None for NaN, as in a run that diverges.
    return Figure(
        name=name,
        last=f"{'not a number' if last is None else f'{last:.4g}'} at step {step or 0:,.0f}",
        best=f"best {best[1]:.4g} at step {best[0]:,.0f}" if best else "no number yet",
        spark=spark(points),
    )


def spark(points: Sequence[tuple[float, float]]) -> str:
    """The points of an SVG polyline in a box of 120 x 28; empty for fewer than two points."""
    if len(points) < 2:
        return ""
    every = max(1, len(points) // 60)
    kept = [*points[::every], points[-1]]
    left, right = kept[0][0], kept[-1][0]
    low, high = min(y for _, y in kept), max(y for _, y in kept)
    wide, high_span = (right - left) or 1.0, (high - low) or 1.0
    return " ".join(f"{(x - left) / wide * _WIDE:.1f},{2 + (high - y) / high_span * (_HIGH - 4):.1f}" for x, y in kept)
