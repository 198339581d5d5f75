"""What a run's program reports: JSON lines in metrics.jsonl, or in one file for each replica group."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.spec.paths import RunPaths

Record = dict[str, Any]

# Enough to hold the last record of an average, of which there is one in H steps at most.
_TAIL_BYTES = 1 << 17


@dataclass(frozen=True, kw_only=True)
class Quorum:
    """The replica groups at their last average. step: inner steps that are in the global parameters."""

    quorum_id: int
    groups: tuple[int, ...]
    averaged: int
    outer_step: int
    step: int
    time: str

    def __str__(self) -> str:
        named = " ".join(map(str, self.groups))
        return (
            f"{len(self.groups)} groups ({named}), id {self.quorum_id}, outer step {self.outer_step}, step {self.step}"
        )


def files(run_dir: Path) -> list[Path]:
    """The run's metrics.jsonl; of replica groups one each."""
    own = RunPaths(run_dir).metrics
    return [own] if own.exists() else sorted(run_dir.glob(f"replica-*/{own.name}"))


def records(run_dir: Path) -> list[Record]:
    """All records, those of several groups in the order of their times. A line that was cut off is passed over."""
    found = [_parsed(path.read_text(encoding="utf-8", errors="replace").splitlines()) for path in files(run_dir)]
    if len(found) == 1:
        return found[0]
    return sorted((record for group in found for record in group), key=lambda record: str(record.get("time", "")))


def quorum(run_dir: Path) -> Quorum | None:
    """The furthest average that any replica group recorded; None when there is none."""
    averages = [one for path in files(run_dir) for one in _parsed(_tail(path)) if one.get("kind") == "outer"]
    last = max(averages, key=lambda record: (record["outer_step"], record["time"]), default=None)
    if last is None:
        return None
    return Quorum(
        quorum_id=last["quorum_id"],
        groups=tuple(last["groups"]),
        averaged=last["averaged"],
        outer_step=last["outer_step"],
        step=last["step"],
        time=last["time"],
    )


def _tail(path: Path) -> list[str]:
    """The last lines of a file; the first of them may be cut off."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()


def _parsed(lines: Iterable[str]) -> list[Record]:
    found = []
    for line in lines:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue  # cut off by a kill, a full disk, or by reading from the middle
        if isinstance(record, dict):
            found.append(record)
    return found
