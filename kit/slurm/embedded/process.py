"""Finds and ends processes without trusting a name or a bare pid.

A process is identified by its pid and start time, by a variable that only the kit's daemons have, or by its ancestors.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from kit.slurm.embedded.cluster_record import ProcessId

_PROC = Path("/proc")
_POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class ProcessEntry:
    """One line of the process table."""

    pid: int
    parent: int
    start: int
    zombie: bool


def table() -> dict[int, ProcessEntry]:
    """All processes, by pid."""
    entries = (entry(int(path.name)) for path in _PROC.iterdir() if path.name.isdigit())
    return {found.pid: found for found in entries if found}


def entry(pid: int) -> ProcessEntry | None:
    """One process; None if it does not exist."""
    try:
        # proc(5): the second field is the name in brackets and may hold anything, so split after its end.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return ProcessEntry(pid=pid, parent=int(fields[1]), start=int(fields[19]), zombie=fields[0] in "ZX")


def identify(pid: int) -> ProcessId | None:
    """The unique identity of a living process; None if there is none."""
    found = entry(pid)
    return None if found is None or found.zombie else ProcessId(pid=pid, start=found.start)


def is_alive(process: ProcessId) -> bool:
    """Whether the process with exactly this identity runs."""
    return identify(process.pid) == process


def environ(pid: int) -> dict[str, str]:
    """A process's environment at its start; empty if the process does not exist or belongs to another user."""
    try:
        raw = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def program(pid: int) -> str:
    """The file name of a process's program; empty if the process does not exist or belongs to another user."""
    try:
        return (_PROC / str(pid) / "exe").readlink().name
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    """The living children of a process, oldest first."""
    found = [one for one in table().values() if one.parent == pid and not one.zombie]
    return [one.pid for one in sorted(found, key=lambda one: one.start)]


def matching(wanted: Callable[[int], bool]) -> set[ProcessId]:
    """All living processes that `wanted` accepts, with their descendants, but never this process or its ancestors."""
    rows = table()
    spared = _ancestors(rows)
    roots = {pid for pid, row in rows.items() if not row.zombie and pid not in spared and wanted(pid)}
    found = (rows[pid] for pid in _with_descendants(rows, roots) - spared)
    return {ProcessId(pid=row.pid, start=row.start) for row in found if not row.zombie}


def end(processes: Iterable[ProcessId], *, grace_s: float) -> None:
    """Send TERM, and KILL after grace_s. Returns when all have ended, or five seconds after KILL."""
    left = _signal(set(processes), signal.SIGTERM)
    left = _wait(left, grace_s)
    _wait(_signal(left, signal.SIGKILL), 5)


def kill(processes: Iterable[ProcessId]) -> None:
    """Send KILL, and wait at most five seconds until the processes have ended."""
    _wait(_signal(set(processes), signal.SIGKILL), 5)


def _signal(processes: set[ProcessId], number: signal.Signals) -> set[ProcessId]:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # The file descriptor pins the process, so the signal reaches the process that was identified.
            descriptor = os.pidfd_open(process.pid)
            try:
                if is_alive(process):
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)
    return processes


def _wait(processes: set[ProcessId], seconds: float) -> set[ProcessId]:
    deadline = time.monotonic() + seconds
    while left := {process for process in processes if is_alive(process)}:
        if time.monotonic() > deadline:
            return left
        time.sleep(_POLL_S)
    return set()


def _ancestors(rows: dict[int, ProcessEntry]) -> set[int]:
    found, pid = set(), os.getpid()
    while pid in rows and pid not in found:
        found.add(pid)
        pid = rows[pid].parent
    return found


def _with_descendants(rows: dict[int, ProcessEntry], roots: set[int]) -> set[int]:
    found, new = set(roots), set(roots)
    while new:
        new = {row.pid for row in rows.values() if row.parent in new} - found
        found |= new
    return found
