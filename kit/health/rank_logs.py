"""The steps of ranks that report nothing to the kit, from each rank's log."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kit.files import untrusted_files
from kit.health.run_record import MOST_RANKS
from kit.observed import run_log
from kit.record import log_places
from kit.schema.rank_log import rank_log
from kit.schema.run_paths import RunPaths

# rank.sh writes its first line at each start of a rank.
_START = re.compile(rb"^\S+ (?P<host>\S+): (?:\S+: )?rank \d+ of \d+: node rank ", re.MULTILINE)
_TAIL_BYTES = 256 << 10


@dataclass(frozen=True, kw_only=True)
class LoggedStep:
    """The last step in one rank's log. took: seconds of a step; 0 if the log does not say. idle: seconds since the log grew.

    source: what the step was read from. node: empty if the log's end does not name it.
    """

    role: str
    rank: int
    node: str
    step: int
    took: float
    idle: float
    source: str


def read_steps(run_dir: Path) -> list[LoggedStep]:
    """The ranks whose logs tell a step, in their order. Many programs write theirs on one rank only."""
    return sorted(_of_logs(RunPaths(run_dir).logs), key=lambda one: (one.role, one.rank))


def _of_logs(logs: Path) -> Iterator[LoggedStep]:
    now = time.time()
    ranks = {(path.parent, named.rank) for path in logs.glob("**/rank-*.log") if (named := rank_log(path.name))}
    for folder, rank in sorted(ranks)[:MOST_RANKS]:
        files = (run_log.read_file(path, name=path.name, whole=False) for path in log_places.of_rank(folder, rank))
        log = next(filter(None, files), None)
        if log is None:
            continue
        rate = next((values[key] for _, values in reversed(log.points) if values.get(key := "steps_per_second")), 0.0)
        role = folder.relative_to(logs).as_posix()
        yield LoggedStep(
            role="" if role == "." else role,
            rank=rank,
            node=_node(folder / f"rank-{rank}.log"),
            step=log.last_step,
            took=1 / rate if rate else 0.0,
            idle=max(0.0, now - log.time),
            source=log.source,
        )


def _node(path: Path) -> str:
    """The node of the rank's last start."""
    try:
        with untrusted_files.open_regular(path) as source:
            text = source.read(4096) + b"\n" + untrusted_files.tail(path, _TAIL_BYTES)
    except OSError:
        return ""
    starts = [*_START.finditer(text)]
    return starts[-1]["host"].decode(errors="replace") if starts else ""
