"""The logs of a run, merged: each line with the name of its source in front, old lines first, new ones as they come."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kit.errors import UsageError
from kit.runs.manifest import read
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


def sources(run_dir: Path, *, rank: int | None = None, role: str | None = None) -> list[Path]:
    """The log files there are now: batch, tasks, ranks, role by role; or one role's or rank's only. Ranks in numeric order."""
    paths = RunPaths(run_dir)

    def order(path: Path) -> tuple[str, int, int, int]:
        folder = path.parent.relative_to(paths.logs).as_posix()
        # `replica-10` comes after `replica-9`.
        kind, _, number = folder.rpartition("-")
        by_folder = (kind, int(number)) if number.isdigit() else ("" if folder == "." else folder, -1)
        found = re.fullmatch(r"(batch|error|task|rank)(?:-(\d+))?", path.stem)
        kinds = ("batch", "error", "task", "rank")
        place = (kinds.index(found[1]), int(found[2] or 0)) if found else (len(kinds), 0)
        return (*by_folder, *place)

    folder = paths.logs / role if role else paths.logs
    # batch.log may be a link to where the job wants it; the links to the newest start of a role would show its lines twice.
    found = [p for p in folder.glob("**/*.log") if not p.name.startswith("latest_")]
    if rank is not None:
        found = [p for p in found if p.name == f"rank-{rank}.log"] or ([] if role else [paths.rank_log(rank)])
    return sorted(found, key=order)


def name_of(run_dir: Path, path: Path) -> str:
    """What stands in front of a log's lines: `rank-0`, or `trainer/rank-0` where the run has roles."""
    return path.relative_to(RunPaths(run_dir).logs).with_suffix("").as_posix()


def require_role(run_dir: Path, role: str | None) -> None:
    """UsageError when the run has no such role, naming those that it has."""
    logs = RunPaths(run_dir).logs
    if role is not None and not (logs / role).is_dir():
        known = ", ".join(sorted(p.name for p in logs.iterdir() if p.is_dir())) if logs.is_dir() else ""
        raise UsageError(
            f"{run_dir.name} has no role {role!r}", hint=f"its roles: {known or 'none, it is a plain job'}"
        )


def require_rank(run_dir: Path, rank: int | None) -> None:
    """UsageError when the run has no rank of this number: it would have no log, whatever is waited for."""
    paths = RunPaths(run_dir)
    ranks = max(read(paths.manifest).world_sizes.values())
    if rank is not None and rank >= ranks and not any(paths.logs.glob(f"**/rank-{rank}.log")):
        raise UsageError(f"{run_dir.name} has no rank {rank}", hint=f"its ranks are 0 to {ranks - 1}")


def follow(
    run_dir: Path, *, rank: int | None, ended: Callable[[], bool], once: bool = False, role: str | None = None
) -> Iterator[tuple[str, str]]:
    """Yield (source, line). Without `once`, go on until `ended()`; files that appear later are picked up."""
    tails: dict[Path, Tail] = {}
    while True:
        last = once or ended()
        for path in sources(run_dir, rank=rank, role=role):
            tail = tails.setdefault(path, Tail(path))
            yield from ((name_of(run_dir, path), line) for line in tail.lines())
            if last:
                yield from ((name_of(run_dir, path), line) for line in tail.rest())
        if last:
            return
        time.sleep(_POLL_S)
