"""The logs of a run, merged: each line with the name of its source in front, old lines first, new ones as they come."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kit.spec.paths import RunPaths

_POLL_S = 0.2
_CHUNK = 1 << 20


class Tail:
    """One growing file. It may not exist yet, and may appear at any time."""

    def __init__(self, path: Path) -> None:
        self.path, self._offset, self._rest = path, 0, b""

    def lines(self) -> Iterator[str]:
        """Whole lines that came since the last call; a line without its newline waits."""
        try:
            with self.path.open("rb") as source:
                source.seek(self._offset)
                while chunk := source.read(_CHUNK):
                    self._offset += len(chunk)
                    *whole, self._rest = (self._rest + chunk).split(b"\n")
                    yield from (line.decode(errors="replace") for line in whole)
        except FileNotFoundError:
            return

    def rest(self) -> Iterator[str]:
        """The last line, when it never got its newline."""
        if self._rest:
            yield self._rest.decode(errors="replace")
            self._rest = b""


def sources(run_dir: Path, *, rank: int | None = None) -> list[Path]:
    """The log files there are now: batch, tasks, ranks; or one rank's only. Ranks in numeric order."""
    paths = RunPaths(run_dir)
    if rank is not None:
        return [paths.rank_log(rank)]

    def order(path: Path) -> tuple[int, int]:
        found = re.fullmatch(r"(batch|error|task|rank)(?:-(\d+))?", path.stem)
        kinds = ("batch", "error", "task", "rank")
        return (kinds.index(found[1]), int(found[2] or 0)) if found else (len(kinds), 0)

    return sorted(paths.logs.glob("*.log"), key=order)


def follow(
    run_dir: Path, *, rank: int | None, ended: Callable[[], bool], once: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield (source, line). Without `once`, go on until `ended()`; files that appear later are picked up."""
    tails: dict[Path, Tail] = {}
    while True:
        last = once or ended()
        for path in sources(run_dir, rank=rank):
            tail = tails.setdefault(path, Tail(path))
            yield from ((path.stem, line) for line in tail.lines())
            if last:
                yield from ((path.stem, line) for line in tail.rest())
        if last:
            return
        time.sleep(_POLL_S)
