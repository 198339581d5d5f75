"""A program on a pseudo terminal, typed to and read as a user would."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Terminal:
    """A program on a pseudo terminal, and what it has printed."""

    pid: int
    master: int
    seen: str = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, pattern: str, *, seconds: float = 60) -> re.Match[str]:
        """Read until `pattern` comes; what is before it is forgotten."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < end, f"no {pattern!r} within {seconds} s in:\n{self.seen}"
            self._read()
        self.seen = self.seen[found.end() :]
        return found

    def code(self, *, seconds: float = 60) -> int:
        """The exit code, once the program has ended."""
        end = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < end, f"still running:\n{self.seen}"
            self._read()

    def hang_up(self) -> None:
        """Close the terminal's window."""
        os.close(self.master)
        self.master = -1

    def _read(self) -> None:
        if self.master < 0:
            time.sleep(0.1)
            return
        ready, _, _ = select.select([self.master], [], [], 0.1)
        if ready:
            with contextlib.suppress(OSError):
                self.seen += os.read(self.master, 65536).decode(errors="replace")


@contextmanager
def terminal(argv: Sequence[str], *, cwd: Path, env: dict[str, str]) -> Iterator[Terminal]:
    """Start a program on a terminal of its own; it is killed if the block leaves it running."""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(argv[0], list(argv), env)
    screen = Terminal(pid, master)
    try:
        yield screen
    finally:
        if screen.pid:
            os.killpg(screen.pid, signal.SIGKILL)
            os.waitpid(screen.pid, 0)
        if screen.master >= 0:
            os.close(screen.master)
