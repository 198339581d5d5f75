"""Who made a temporary folder or holds a lock, in a form that another process, and another host, can judge."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process that no other process can be mistaken for.

    boot: first digits of the kernel's boot id. started: clock ticks since boot (proc(5), stat field 22), because a pid is
    given out again.
    """

    host: str
    boot: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> Self:
        """This process."""
        return cls(host=socket.gethostname(), boot=_boot(), pid=os.getpid(), started=_started(os.getpid()) or 0)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The inverse of `str`; None for anything else, such as a lock that is being written."""
        parts = text.strip().split("~")
        if len(parts) != 4 or not (parts[2].isdigit() and parts[3].isdigit()):
            return None
        return cls(host=parts[0], boot=parts[1], pid=int(parts[2]), started=int(parts[3]))

    def __str__(self) -> str:
        return f"{self.host}~{self.boot}~{self.pid}~{self.started}"

    def alive(self) -> bool | None:
        """Whether the process still runs; None when it belongs to another host, where this one cannot look."""
        if self.host != socket.gethostname():
            return None
        return self.boot == _boot() and _started(self.pid) == self.started


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]


def _started(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses, and may itself hold blanks and parentheses.
    return int(stat.rpartition(")")[2].split()[19])
