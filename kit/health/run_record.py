"""The facts of a run that `kit why` reads: status, events, ends of logs. Memory use is limited, even for huge logs."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kit.errors import RunError
from kit.files import safe_text, untrusted_files
from kit.hosts.status import Status
from kit.record import how_ended, log_places, resumed_from, run_facts
from kit.schema.run_paths import RunPaths

# Read this much from the end of each log; a traceback with its frames has some tens of KiB.
_TAIL_BYTES = 256 << 10
_CHUNK = 1 << 20
_LINE = 400
# A job of thousands of ranks has as many logs. At most this many are read.
MOST_RANKS = 1024
# lib/failures.sh has the same: seconds by which clocks may differ, and exit codes of a rank that may have ended because another
# did: of an exception, 128 + SIGABRT and SIGSEGV of an abort, 128 + SIGKILL.
_SKEW_S = 5.0
_DOUBTED = frozenset({1, 134, 139, 137})
START = re.compile(r": (?:\S+: )?rank (?P<rank>\d+) of \d+: node rank \d+, local rank \d+, restart \d+$")
# The lines of the kit itself in a rank's log whose output torchrun writes, and the beginning of what Python says of an error.
_OWN_LINE = re.compile(rf"{START.pattern}|: torchrun writes what it prints to ")
_ERROR = re.compile(r"Traceback \(most recent call last\)|^Fatal Python error: ")
_HOST = re.compile(r"^\S+ (?P<host>\S+): ")


@dataclass(frozen=True)
class Log:
    """The end of a log. name: relative to the run folder. first: the number of its first line here."""

    name: str
    lines: tuple[str, ...]
    first: int

    def since(self, pattern: re.Pattern[str]) -> Log:
        """The lines from the last match on; all lines if none matches."""
        for place in range(len(self.lines) - 1, -1, -1):
            if pattern.search(self.lines[place]):
                return Log(self.name, self.lines[place:], self.first + place)
        return self

    def number(self, place: int) -> int:
        """The line number in the file of the line at index `place` here."""
        return self.first + place


@dataclass(frozen=True, kw_only=True)
class RankFailure:
    """A rank that recorded its own end. at: seconds since the epoch. alone: it was killed, and not its whole Slurm step."""

    rank: int
    code: int
    node: str
    role: str
    at: float
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run. expected_start: Slurm's estimate for a waiting job; empty if Slurm gives none."""

    status: Status
    expected_start: str = ""

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return self.status.run_dir

    @cached_property
    def events(self) -> list[dict[str, object]]:
        """Events of the run's newest job, oldest first."""
        every = run_facts.events(self.run_dir)
        last = every[-1].get("job_id") if every else None
        return [event for event in every if event.get("job_id") == last]

    @cached_property
    def batch(self) -> Log:
        """The batch script's standard error since its last start; the batch log, unless the job sends it elsewhere."""
        return self.log(log_places.batch(self.run_dir)[0]).since(re.compile(how_ended.START))

    @cached_property
    def batch_output(self) -> Log:
        """The batch script's standard output since its last start; usually the same log."""
        return self.log(log_places.batch(self.run_dir)[-1]).since(re.compile(how_ended.START))

    @cached_property
    def values(self) -> Mapping[str, object]:
        """Values for the placeholders in sentences and commands."""
        run = self.status
        try:
            job_file: str | None = run.manifest.job_file
        except RunError:
            job_file = None
        return {
            "run": self.run_dir.name,
            "job_id": run.job_id,
            "job_file": job_file,
            "nodes": run.nodes,
            "elapsed": run.elapsed,
        }

    def has_event(self, event: str, **values: str) -> bool:
        """Whether the newest job recorded this event with these values."""
        return any(e["event"] == event and all(e.get(k) == v for k, v in values.items()) for e in self.events)

    def starts(self) -> int:
        """The number of starts of the ranks in the newest job."""
        return sum(event["event"] == "attempt" for event in self.events)

    @cached_property
    def job(self) -> Mapping[str, Any]:
        """The values of the run's job.toml; empty if it cannot be read."""
        try:
            return tomllib.loads(untrusted_files.read_text(RunPaths(self.run_dir).job))
        except (OSError, ValueError, RecursionError, RunError):
            return {}

    @cached_property
    def restarts(self) -> Mapping[str, tuple[int, int]]:
        """Key of [retry] -> how many starts it allows the newest job, and how many were made. Without keys that allow none."""
        retry, slurm = (found if isinstance(found := self.job.get(name), dict) else {} for name in ("retry", "slurm"))
        began = max((place for place, event in enumerate(self.events) if event["event"] == "start"), default=0)
        counts = [count for event in self.events if isinstance(count := event.get("restart"), int)]
        # slurm.requeue leaves Slurm's own requeues uncounted.
        queued = sum(e["event"] == "requeue" for e in self.events) if slurm.get("requeue") else max(counts, default=0)
        made = {"in_allocation": sum(e["event"] == "attempt" for e in self.events[began:]) - 1, "requeue": queued}
        return {key: (most, n) for key, n in made.items() if isinstance(most := retry.get(key), int) and most > 0}

    @cached_property
    def resumed(self) -> str:
        """Where the starts of the newest job continued; empty if none did. Without braces, as `torchrun_restarts`."""
        text = resumed_from.summary(self.events)
        return f"; it {shown(text)}".replace("{", "(").replace("}", ")") if text else ""

    def log(self, path: Path, most: int = _TAIL_BYTES) -> Log:
        """The end of a file; empty if the file does not exist."""
        name = path.relative_to(self.run_dir).as_posix()
        try:
            path = log_places.real(self.run_dir, path)
            end = untrusted_files.tail(path, most)
            before = max(0, path.stat().st_size - len(end))
            first = 1 + (_newlines(path, before) if before else 0)
        except OSError:
            return Log(name, (), 1)
        lines = end.decode(errors="replace").split("\n")
        return Log(name, tuple(lines[:-1] if lines[-1] == "" else lines), first)

    def rank_log(self, rank: int, role: str) -> Log:
        """A rank's log since its last start; of several files, that with the error. If there is none, the log of the launcher."""
        folder = RunPaths(self.run_dir).logs / role
        own = folder / f"rank-{rank}.log"
        if logs := [self.log(path).since(START) for path in log_places.of_rank(folder, rank)]:
            said = [log for log in logs if any(not _OWN_LINE.search(line) for line in log.lines)]
            return next((log for log in said if any(map(_ERROR.search, log.lines))), (said or logs)[0])
        tasks = sorted(folder.glob("task-*.log"))[:MOST_RANKS]
        return next(
            (log for log in map(self.log, tasks) if log.lines), Log(own.relative_to(self.run_dir).as_posix(), (), 1)
        )

    def ranks(self) -> Iterable[tuple[str, int]]:
        """Role and rank of each rank that has a log, at most MOST_RANKS."""
        logs = RunPaths(self.run_dir).logs
        found = [
            (path.parent.relative_to(logs).as_posix(), int(path.stem[5:]))
            for path in logs.glob("**/rank-*.log")
            if path.stem[5:].isdecimal()
        ]
        return [("" if role == "." else role, rank) for role, rank in sorted(found)[:MOST_RANKS]]

    @cached_property
    def failed(self) -> list[RankFailure]:
        """The ranks of the last start that recorded an exit code other than 0, the earliest first.

        `restartable` has those that torchrun was to start again, and has not.
        """
        return self._failures("*/rank-*", "*/restartable/rank-*")

    @cached_property
    def torchrun_restarts(self) -> str:
        """How often torchrun itself has restarted the ranks in the last start, and the first reason; empty if it has not.

        The restarts of several roles are added. The text has no braces, so that it can be part of a rule's sentence.
        """
        starts = (self.log(path).lines for path in self._glob("*/torchrun-starts"))
        times = sum(max(0, len(lines) - 1) for lines in starts)
        if not times:
            return ""
        often = {1: "once", 2: "twice"}.get(times, f"{times} times")
        first = next(iter(self._failures("*/restarted/rank-*")), None)
        why = f", first because rank {first.rank} on {first.node} ended with exit code {first.code}" if first else ""
        return shown(f"torchrun restarted the ranks {often}{why}").replace("{", "(").replace("}", ")")

    def _failures(self, *patterns: str) -> list[RankFailure]:
        found = [_failed(path) for pattern in patterns for path in self._glob(pattern)]
        return _in_order(one for one in found if one is not None)

    def _glob(self, pattern: str) -> list[Path]:
        """Paths in the folder of lib/failures.sh of the last start."""
        state = RunPaths(self.run_dir).state
        attempts = [int(p.name[9:]) for p in state.glob("failures-*") if p.name[9:].isdecimal()]
        return list(state.glob(f"failures-{max(attempts)}/{pattern}")) if attempts else []

    def host_of(self, log: Log) -> str:
        """The node of a rank that recorded nothing. It is read from the first line of the rank's log."""
        found = _HOST.match(log.lines[0]) if log.lines and START.search(log.lines[0]) else None
        return found["host"] if found else ""


def shown(line: str) -> str:
    """A line of a log in the form that answers quote: without control characters, of limited length, with the last state of a
    progress bar only."""
    last = line.rstrip("\r").rpartition("\r")[2]
    return safe_text.clean_lines(last.encode(errors="replace"))[:_LINE].decode(errors="replace").strip()


def _in_order(failed: Iterable[RankFailure]) -> list[RankFailure]:
    """The earliest first; but first of all a rank that was killed alone, if that may be why the earliest ended.

    The times come from several nodes' clocks. lib/failures.sh has the same rule, and says why.
    """
    ordered = sorted(failed, key=lambda one: one.at)
    if ordered and ordered[0].code in _DOUBTED:
        killed = next((one for one in ordered if one.alone and one.at - ordered[0].at <= _SKEW_S), None)
        ordered.sort(key=lambda one: one is not killed)
    return ordered


def _failed(path: Path) -> RankFailure | None:
    """Parse a record of failures.sh. On a full disk the file is empty; its name and time still give rank, code and time."""
    rank, code, *_ = (path.name.removeprefix("rank-") + ".").split(".")
    if not (rank.isdecimal() and code.isdecimal() and len(rank) < 10 and len(code) < 10):
        return None
    try:
        words = untrusted_files.read_text(path, most=4096).split()
        at = float(words[0]) if words else path.stat().st_mtime
    except (OSError, ValueError):
        return None
    node, role = (words + [""] * 5)[3:5]
    return RankFailure(rank=int(rank), code=int(code), node=node, role=role, at=at, alone=path.suffix == ".alone")


def _newlines(path: Path, before: int) -> int:
    """The number of line ends in the first `before` bytes."""
    count = 0
    with untrusted_files.open_regular(path) as source:
        while before > 0 and (chunk := source.read(min(_CHUNK, before))):
            count += chunk.count(b"\n")
            before -= len(chunk)
    return count


def size_of(path: Path) -> int:
    """The size of a file in bytes; 0 if it does not exist."""
    try:
        return os.stat(path).st_size  # noqa: PTH116 - follows a link to where the job wants its log
    except OSError:
        return 0
