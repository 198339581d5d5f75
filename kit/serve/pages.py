"""The pages. Each is made once for all its readers, and again when its data have changed."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kit.errors import RunError
from kit.reports import make_report, page
from kit.reports.page import Live
from kit.serve import listing
from kit.serve.current_runs import Board, trace
from kit.serve.glances import Glances

# Pages that are kept. Of a page that took a second to make, the next one is made five seconds later at the earliest.
_MOST_PAGES, _SHARE = 64, 5.0
# The most runs of one comparison: each is read completely.
MOST_COMPARED = 16


@dataclass(frozen=True)
class Key:
    """The name of a page. kind: list, run, sweep or compare. ids: of its runs or its sweep."""

    kind: str
    ids: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Key:
        """Parse the text that `str` returns."""
        kind, *ids = text.split("/")
        return cls(kind, tuple(ids))

    def __str__(self) -> str:
        return "/".join((self.kind, *self.ids))


@dataclass(frozen=True, kw_only=True)
class Made:
    """A page. shows: the facts that it was made from; at, took: seconds of the monotonic clock; version: unique to this page."""

    html: str
    data: str
    version: str
    shows: object
    at: float
    took: float


class Pages:
    """All pages of a server. Its methods are thread-safe. control: pages have buttons for cancel and resume."""

    def __init__(self, board: Board, *, control: bool) -> None:
        self._board, self._control = board, control
        self._glances = Glances()
        self._made: OrderedDict[Key, Made] = OrderedDict()
        self._locks: dict[Key, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Key) -> Made:
        """The page. It is made again if its facts changed and it is old enough. RunError for an unknown name."""
        shows = self.shows(key)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        # One reader makes it; the others wait for that one.
        with lock:
            kept_page = self._made.get(key)
            if kept_page is None or (
                kept_page.shows != shows and time.monotonic() - kept_page.at >= _SHARE * kept_page.took
            ):
                kept_page = self._make(key, shows)
                with self._lock:
                    self._made[key] = kept_page
                    self._made.move_to_end(key)
                    while len(self._made) > _MOST_PAGES:
                        old, _ = self._made.popitem(last=False)
                        self._locks.pop(old, None)
            return kept_page

    def shows(self, key: Key) -> object:
        """The facts that a page shows: it is made again when they change. RunError for an unknown name."""
        if key.kind == "list":
            states = ((run.run_dir.name, run.state, run.exit_code, run.nodes) for run in self._board.runs().values())
            return *states, *self._glances.seen(listing.newest_runs(self._board))
        if key.kind == "sweep" and len(key.ids) == 1:
            folder = self._board.sweep(key.ids[0])
            if folder is not None:
                return tuple(trace(run) for run in self._board.sweeps()[folder])
        elif (key.kind == "run" and len(key.ids) == 1) or (
            key.kind == "compare" and 2 <= len(key.ids) <= MOST_COMPARED
        ):
            found = [self._board.run(name) for name in key.ids]
            if all(found):
                return tuple(trace(run) for run in found if run is not None)
        raise RunError(f"{key}: there is no such page")

    def _make(self, key: Key, shows: object) -> Made:
        began, version = time.monotonic(), secrets.token_hex(8)
        live = Live(
            page=str(key),
            base="" if key.kind in {"list", "compare"} else "../",
            nonce=secrets.token_urlsafe(16),
            made=version,
            data=f"{key.ids[0]}/report.json" if key.kind in {"run", "sweep"} else "",
            control=self._actions(key),
        )
        if key.kind == "list":
            rows = listing.rows(self._board, self._glances)
            html, data = listing.html(rows, live), json.dumps(rows)
        else:
            report = self._report(key)
            html, data = page.html(report, "", live=live), json.dumps(report, allow_nan=False)
        ended = time.monotonic()
        return Made(html=html, data=data, version=version, shows=shows, at=ended, took=ended - began)

    def _report(self, key: Key) -> dict[str, Any]:
        folder = self._board.sweep(key.ids[0]) if key.kind == "sweep" else None
        paths = [folder] if folder is not None else [one.run_dir for n in key.ids if (one := self._board.run(n))]
        return make_report.report(
            [str(p) for p in paths], self._board.folders(), queue=self._board.queue, now=time.time()
        )

    def _actions(self, key: Key) -> Sequence[str]:
        if not self._control or key.kind not in {"run", "sweep"}:
            return ()
        if key.kind == "sweep":
            return ("cancel",)
        one = self._board.run(key.ids[0])
        return () if one is None else ("cancel",) if one.active else ("resume",)
