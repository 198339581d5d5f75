"""Shows the progress of long work to a person: stages, the tools' own lines, a bar. Everything goes to stderr."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

_PLAIN_EVERY_S = 5.0


class ProgressReporter(Protocol):
    """The interface through which kit.images reports progress."""

    def stage(self, text: str) -> None:
        """A step begins."""

    def line(self, text: str) -> None:
        """A tool printed a line."""

    def warn(self, text: str) -> None:
        """A problem that the user should know and that does not stop the work."""

    def counting(self, text: str, total: int) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        """A step with progress in bytes. The block gets a function to call with the number of new bytes."""


class Silent:
    """Discards all reports."""

    def stage(self, text: str) -> None:
        """Discard a stage."""

    def line(self, text: str) -> None:
        """Discard a line."""

    def warn(self, text: str) -> None:
        """Discard a warning."""

    @contextlib.contextmanager
    def counting(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """Give the block a function that does nothing."""
        yield lambda _: None


class Terminal:
    """Prints to stderr: a bar on a terminal; otherwise plain lines, at most one every few seconds for progress in bytes."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)

    def stage(self, text: str) -> None:
        """Print a stage in bold."""
        self._console.print(f"==> {text}", style="bold", markup=False)

    def line(self, text: str) -> None:
        """Print a tool's line, dimmed."""
        self._console.print(f"    {text}", style="dim", markup=False)

    def warn(self, text: str) -> None:
        """Print a warning in yellow."""
        self._console.print(f"warning: {text}", style="yellow", markup=False)

    @contextlib.contextmanager
    def counting(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a bar, or plain lines if stderr is not a terminal."""
        if not self._console.is_terminal:
            self.stage(text)
            yield self._plain(total)
            return
        columns = (TextColumn("==> {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=self._console, transient=True) as bar:
            task = bar.add_task(text, total=total)
            yield lambda more: bar.advance(task, more)
        self.stage(text)

    def _plain(self, total: int) -> Callable[[int], None]:
        start = last = time.monotonic()
        done = 0

        def advance(more: int) -> None:
            nonlocal last, done
            done += more
            now = time.monotonic()
            if now - last >= _PLAIN_EVERY_S:
                last = now
                rate = done / (now - start)
                left = max(total - done, 0) / rate if rate else 0
                self.line(f"{done / 1e6:.0f} of about {total / 1e6:.0f} MB, {rate / 1e6:.0f} MB/s, {left:.0f} s left")

        return advance
