"""The process that made a temporary folder or holds a lock, recorded so that another process or host can tell
whether it is alive.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A unique identity of a process.

    boot: first digits of the kernel's boot id. started: clock ticks since boot (proc(5), stat field 22), because a pid is reused.
    namespace: of the pid; two containers on one host may have the same host name, and each a process 7.
    """

    host: str
    boot: str
    pid: int
    started: int
    namespace: int

    @classmethod
    def current(cls) -> Self:
        """This process."""
        pid = os.getpid()
        return cls(
            host=socket.gethostname(), boot=_boot(), pid=pid, started=_started(pid) or 0, namespace=_pid_namespace()
        )

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The inverse of `str`; None for any other text, such as a lock that is being written."""
        parts = text.strip().split("~")
        if len(parts) != 5 or not all(part.isdecimal() and len(part) < 20 for part in parts[2:]):
            return None
        pid, started, namespace = map(int, parts[2:])
        return cls(host=parts[0], boot=parts[1], pid=pid, started=started, namespace=namespace)

    def __str__(self) -> str:
        return f"{self.host}~{self.boot}~{self.pid}~{self.started}~{self.namespace}"

    def alive(self) -> bool | None:
        """Whether the process is alive. None if it belongs to another host or PID namespace, where that cannot be checked."""
        if self.host != socket.gethostname():
            return None
        if self.boot == _boot() and self.namespace != _pid_namespace():
            return None
        return self.boot == _boot() and _started(self.pid) == self.started


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]


@cache
def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _started(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses, which may itself contain blanks and parentheses.
    return int(stat.rpartition(")")[2].split()[19])
