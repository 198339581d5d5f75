"""Lines of a run's logs, for `kit logs --json` and the Python API."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kit.record import logs
from kit.record.logs import Wanted


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line. source: the log, `rank-0`, or `trainer/rank-0` if the run has roles. line: as the program wrote it."""

    source: str
    line: str


def lines_of(source: str, chunk: bytes) -> Iterator[LogLine]:
    """The lines of a chunk of `logs.follow`. Bytes that are not UTF-8 are replaced."""
    for line in chunk.decode(errors="replace").split("\n")[:-1]:
        yield LogLine(source=source, line=line)


def written(run_dir: Path, wanted: Wanted) -> Iterator[LogLine]:
    """The lines that a run has written so far, log by log, in constant memory. UsageError for a role or rank that it has not."""
    logs.require_role(run_dir, wanted.role)
    for rank in wanted.ranks:
        logs.require_rank(run_dir, rank)
    return _lines(run_dir, wanted)


def _lines(run_dir: Path, wanted: Wanted) -> Iterator[LogLine]:
    for source, chunk in logs.follow(run_dir, wanted, ended=lambda: True, once=True):
        yield from lines_of(source, chunk)
