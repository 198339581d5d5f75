"""The times of `python -m benchmarks recovery`: what a run folder says of each kill, and the tables."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

# What happens after a kill, in this order. Each time is counted from the last one that the way has: survivors import nothing, and
# the kit does not see what the wrapper of a peer decides.
PHASES = {
    "noticed": "the end is on record",
    "ended": "the other ranks have ended, or wait",
    "decided": "the batch script orders the next start",
    "started": "rank 0's program begins",
    "imported": "it has imported torch",
    "entered": "it has called its training function",
    "met": "the ranks have met",
    "loaded": "model and checkpoint are loaded",
    "step": "the first optimizer step is done",
}


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One kill: the seconds from the kill to each phase that was seen. The last is `step`."""

    at: Mapping[str, float]

    @property
    def total(self) -> float:
        """Seconds from the kill to the end of the first step."""
        return self.at["step"]

    @property
    def beyond_load(self) -> float:
        """The same without building and loading the model."""
        return self.total - (self.at["loaded"] - self.at["met"])

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of each phase."""
        names = ["", *(name for name in PHASES if name in self.at)]
        return {name: self.at[name] - self.at.get(before, 0.0) for before, name in pairwise(names)}


def read(folder: Path) -> list[Recovery]:
    """The recoveries of a run, in order."""
    kills = [float(line.split()[1]) for line in (folder / "kills").read_text().splitlines()]
    marks = [(word, float(at)) for word, at in map(str.split, (folder / "marks").read_text().splitlines())]
    marks += [("noticed", at) for at in _failures(folder)] + _events(folder)
    found = []
    for kill, until in pairwise([*kills, float("inf")]):
        end = min(at for word, at in marks if word == "step" and at > kill)
        seen = {}
        for name in PHASES:
            # The first after the kill: of the next start.
            times = [at for word, at in marks if word == name and kill <= at <= min(until, end)]
            if times:
                seen[name] = min(times) - kill
        found.append(Recovery(at=seen))
    return found


def _failures(folder: Path) -> list[float]:
    """The times of recorded ends by KILL."""
    records = [path for path in folder.glob("state/failures-*/**/rank-*.137*") if path.is_file()]
    return [float(path.read_text().split()[0]) for path in records if path.stat().st_size]


def _events(folder: Path) -> list[tuple[str, float]]:
    """What the kit's batch script did: the end of all ranks of a start, and the next start. Nothing in a job without the kit."""
    path = folder / "state/events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    words = {"attempt": "decided", "phase": "ended"}
    return [(words[one["event"]], float(one["epoch"])) for one in map(json.loads, lines) if one["event"] in words]


def table(seen: Mapping[str, Sequence[Recovery]]) -> str:
    """A row for each way: p50, p95, and the median of each phase."""
    lines = [f"{name}: {what}" for name, what in PHASES.items()]
    lines += [
        "",
        f"| kill -9 to the next step, s | p50 | p95 | kills | {' | '.join(PHASES)} |",
        "|---" * (4 + len(PHASES)) + "|",
    ]
    for name, all_of in seen.items():
        if not all_of:
            lines.append(f"| {name} | not measured | | 0 |{' |' * len(PHASES)}")
            continue
        totals = [one.total for one in all_of]
        p95 = statistics.quantiles(totals, n=20, method="inclusive")[18] if len(totals) > 1 else totals[0]
        parts = [[one.parts[phase] for one in all_of if phase in one.parts] for phase in PHASES]
        shown = [f"{statistics.median(part):.2f}" if part else "–" for part in parts]
        lines.append(f"| {name} | {statistics.median(totals):.2f} | {p95:.2f} | {len(totals)} | {' | '.join(shown)} |")
    return "\n".join(lines)
