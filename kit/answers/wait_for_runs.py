"""Waits for many runs in one process: for `kit wait`, the Python API and the tools for agents.

What happens in a run is read from its own record, every second. Slurm is asked every half minute, once for all runs of a cluster.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from kit.errors import StillRunningError, ToolError
from kit.hosts import clusters, from_accounting
from kit.hosts import status as host_status
from kit.hosts.from_accounting import Ask
from kit.hosts.host import Queue
from kit.hosts.patient_queue import PatientQueue
from kit.hosts.status import UNKNOWN, Status
from kit.record import how_ended, run_facts
from kit.record.run_facts import Facts
from kit.schema.run_paths import RunPaths
from kit.slurm.client import JobId, QueuedJob

# Seconds between two looks at the records, which are files, and between two questions to Slurm: at most two a minute.
LOOK_S, ASK_S = 1.0, 30.0
_UNSETTLED = frozenset({"LOST", "SUBMITTED"})


@dataclass(frozen=True, kw_only=True)
class RunEvent:
    """Something that happened in a run that is waited for.

    time: when it was seen, ISO 8601, UTC. state: Slurm's word. exit_code: of an ended run. text: of a stall, its rule and rank;
    of an ended run, Slurm's reason.
    """

    time: str
    run: str
    event: Literal["started", "requeued", "stalled", "ended"]
    state: str
    exit_code: int | None
    job_id: JobId | None
    text: str


class RunsWatch:
    """Runs that are waited for. Each call of `look` returns what is new.

    ended: the runs that have ended, in the order of their ends. seen: each run as it was when Slurm was last asked, or at its end.
    queue, history: ask Slurm once per call and cluster. say: called once when a cluster does not answer; NoAnswerError after a
    quarter of an hour without an answer. again: also what this submission of a run has recorded before.
    """

    def __init__(
        self,
        run_dirs: Sequence[Path],
        *,
        queue: Queue,
        history: Ask,
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
        again: bool = False,
    ) -> None:
        self._patient, self._history, self._now = PatientQueue(_retried(queue), say=say), history, now
        self._waiting = {path: _told(path, again=again) for path in dict.fromkeys(run_dirs)}
        self._signatures: dict[Path, object] = {}
        self._requeues = {path: _requeues(run_facts.events(path)[:told]) for path, told in self._waiting.items()}
        self._asked_at = -ASK_S
        # Ended in Slurm, but not in their own record, when Slurm was last asked: records may be late.
        self._doubtful: dict[Path, Status] = {}
        self.ended: list[Status] = []
        self.seen: dict[Path, Status] = {}

    @property
    def waiting(self) -> list[Path]:
        """The runs that have not ended."""
        return [*self._waiting]

    def look(self) -> list[RunEvent]:
        """Read the records that have changed, and ask Slurm if it is time; return what happened."""
        found = [event for path in self.waiting if self._has_changed(path) for event in self._from_record(path)]
        if self._waiting and self._now() - self._asked_at >= ASK_S:
            found += self._from_accounting() if self._lost() else self._from_queue()
            self._asked_at = self._now()
        return found

    def _has_changed(self, path: Path) -> bool:
        paths = RunPaths(path)
        now = (_signature(paths.events), _signature(paths.closed), _signature(paths.manifest))
        changed = self._signatures.get(path) != now
        self._signatures[path] = now
        return changed

    def _from_record(self, path: Path) -> Iterator[RunEvent]:
        facts, events = run_facts.read_facts(path), run_facts.events(path)
        for event in events[self._waiting[path] :]:
            yield from self._of_event(path, facts, event)
        self._waiting[path] = len(events)
        if how_ended.is_over(path, facts):
            # Slurm is not asked about a run that has closed its record.
            (one,) = host_status.of_facts([(path, facts)], queue=lambda _: None)
            yield self._end(one)

    def _of_event(self, path: Path, facts: Facts, event: Mapping[str, object]) -> Iterator[RunEvent]:
        name, state = event["event"], "RUNNING"
        if name in {"start", "requeue"}:
            count = int(str(event.get("restart") or 0)) + (name == "requeue")
            if count > self._requeues[path]:
                self._requeues[path] = count
                yield _event(path, facts, "requeued", "PENDING" if name == "requeue" else state)
        if name == "start":
            yield _event(path, facts, "started", state)
        elif name == "stall":
            text = ", ".join(
                f"{key} {event[key]}" for key in ("rule", "role", "rank", "node", "step") if event.get(key)
            )
            yield _event(path, facts, "stalled", state, text=text)

    def _lost(self) -> list[Status]:
        return [one for path, one in self._doubtful.items() if path in self._waiting and one.state in _UNSETTLED]

    def _from_queue(self) -> Iterator[RunEvent]:
        """One question to each cluster's Slurm for all its runs."""
        before, self._doubtful = self._doubtful, {}
        for run in host_status.read_statuses(self.waiting, queue=self._patient):
            self.seen[run.run_dir] = run
            if run.active or run.state == UNKNOWN:
                continue
            _fetch_end(run)
            if _is_complete(run) or (run.run_dir in before and run.state not in _UNSETTLED):
                yield self._end(run)
            else:
                self._doubtful[run.run_dir] = run

    def _from_accounting(self) -> Iterator[RunEvent]:
        """This half minute's question, to the accounting: for runs that are not in the queue and recorded no end."""
        for one in from_accounting.add(self._lost(), ask=self._history):
            del self._doubtful[one.run_dir]
            if not one.active:
                yield self._end(one)

    def _end(self, one: Status) -> RunEvent:
        del self._waiting[one.run_dir]
        self.ended.append(one)
        self.seen[one.run_dir] = one
        return _event(one.run_dir, one.facts, "ended", one.state, exit_code=one.exit_code, text=one.reason)


def events(
    watch: RunsWatch,
    *,
    first: bool = False,
    timeout: float | None = None,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[RunEvent]:
    """What happens until all runs have ended, or the first one with `first`. timeout: seconds; then StillRunningError."""
    began = now()
    while True:
        yield from watch.look()
        if is_done(watch, first=first):
            return
        require_time(watch, timeout, now() - began)
        sleep(LOOK_S)


def is_done(watch: RunsWatch, *, first: bool) -> bool:
    """Whether the wait is over."""
    return not watch.waiting or (first and bool(watch.ended))


def require_time(watch: RunsWatch, timeout: float | None, passed: float) -> None:
    """StillRunningError if `timeout` seconds have passed."""
    if timeout is None or passed < timeout:
        return
    names = [path.name for path in watch.waiting]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    raise StillRunningError(
        f"after {timeout:g} s not ended: {', '.join(names[:3])}{more}; the runs continue", hint=f"kit status {names[0]}"
    )


def _retried(queue: Queue) -> Queue:
    """The same queue, which also asks a cluster over ssh again that did not answer before."""

    def ask(name: str) -> Mapping[JobId, QueuedJob] | None:
        if (remote := clusters.find_ssh_host(name)) is not None:
            remote.silent = ""
        return queue(name)

    return ask


def _fetch_end(status: Status) -> None:
    """Bring the mark that a run over ssh has closed its record: it comes with the run's files, not with the records of all runs."""
    if status.exit_code is None or status.state in _UNSETTLED or run_facts.is_closed(status.run_dir):
        return
    # A broken connection: the next half minute's answer ends the run all the same.
    with contextlib.suppress(ToolError):
        clusters.fetch(status.run_dir)


def _is_complete(one: Status) -> bool:
    """Whether nothing more is expected in the run's record."""
    return one.state not in _UNSETTLED and (one.exit_code is None or run_facts.is_closed(one.run_dir))


def _told(path: Path, *, again: bool) -> int:
    """How many of a run's events are old: all that are there, or with `again` those of earlier submissions."""
    events = run_facts.events(path)
    if not again:
        return len(events)
    facts = run_facts.read_facts(path)
    # A point of a sweep is submitted once, and its script knows another number of its job.
    if "_" in str(facts.slurm_id):
        return 0
    own = {str(facts.slurm_id), *map(str, facts.links)}
    return next((number for number, one in enumerate(events) if str(one.get("job_id")) in own), len(events))


def _requeues(events: Sequence[Mapping[str, object]]) -> int:
    return max((int(str(one.get("restart") or 0)) + (one["event"] == "requeue") for one in events), default=0)


def _signature(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _event(
    path: Path,
    facts: Facts,
    event: Literal["started", "requeued", "stalled", "ended"],
    state: str,
    *,
    exit_code: int | None = None,
    text: str = "",
) -> RunEvent:
    return RunEvent(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        run=path.name,
        event=event,
        state=state,
        exit_code=exit_code,
        job_id=facts.started[-1] if facts.started else facts.job_id,
        text=text,
    )
