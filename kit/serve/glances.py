"""Reads what the list shows of each run beside its state: its last loss and curve, how long it took, and why it ended so."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kit.errors import KitError
from kit.health.run_record import Record
from kit.health.why import explain
from kit.hosts.status import Status
from kit.record import how_ended
from kit.reports import collect, headline
from kit.serve.current_runs import trace

# Seconds of reading runs for one page. A page with runs still unread is made again with more of them: the first one comes at once.
_READ_S = 1.0
# Newer runs come first. Of older ones the list shows what their facts say.
_MOST = 200


@dataclass(frozen=True, kw_only=True)
class Glance:
    """A run in one row. loss: its last value, '' without one; spark: the points of its curve, as `headline.spark` makes them.

    took: as squeue prints it, of the last start. why: one sentence if it did not end well, or the queue's reason.
    """

    loss: str = ""
    spark: str = ""
    took: str = ""
    why: str = ""


class Glances:
    """The glances of a server's runs, each read again when its files have grown. Its methods are thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, Glance]] = {}
        self._lock = threading.Lock()

    def read_all(self, runs: Sequence[Status]) -> dict[str, Glance]:
        """The glances of the newest runs, by id, reading those that changed for at most a second; the others are read next time."""
        until = time.monotonic() + _READ_S
        newest = runs[:_MOST]
        for run in newest:
            run_id, now = run.run_dir.name, trace(run)
            known = self._known.get(run_id)
            if known is not None and known[0] == now:
                continue
            if time.monotonic() >= until:
                break
            glance = _read(run)
            with self._lock:
                self._known[run_id] = now, glance
        return {run.run_dir.name: self._known[run.run_dir.name][1] for run in newest if run.run_dir.name in self._known}

    def seen(self, runs: Sequence[Status]) -> tuple[object, ...]:
        """A value that changes while runs are still unread, and when one that is active has grown."""
        newest = runs[:_MOST]
        unread = sum(run.run_dir.name not in self._known for run in newest)
        return unread, *(trace(run) for run in newest if run.active)


def _read(run: Status) -> Glance:
    """The glance of one run. What cannot be read of it is left out."""
    try:
        loss, spark = _loss(run)
        return Glance(loss=loss, spark=spark, took=run.elapsed or how_ended.elapsed(run.run_dir), why=_why(run))
    except (KitError, OSError, ValueError):
        return Glance()


def _loss(run: Status) -> tuple[str, str]:
    curve = collect.read_curves(run.run_dir)["loss"]
    if not curve:
        return "", ""
    last = curve[-1][1]
    points = [(step, value) for step, value in curve if step is not None and value is not None]
    return "not a number" if last is None else f"{last:.4g}", headline.spark(points)


def _why(run: Status) -> str:
    if run.active:
        return "" if run.reason in {"None", ""} else run.reason
    return explain(Record(status=run)).line if headline.kind_of(run.state) == "bad" else ""
