"""Groups ranks whose main threads stand at the same place: the stacks of thousands of ranks are a page, and the odd one is seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from kit.health.stall_evidence import RankEvidence


@dataclass(frozen=True, kw_only=True)
class StackGroup:
    """Ranks of one role with one stack.

    role: empty in a plain job. ranks: sorted. lines: what they have in common, the innermost frame first.
    """

    role: str
    ranks: tuple[int, ...]
    lines: tuple[str, ...]


def group_ranks(texts: Mapping[str, str]) -> list[StackGroup]:
    """File name (`rank-5.txt`, `trainer/rank-5.txt`) -> evidence. The largest group is first; files of nodes are left out."""
    ranks: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for name, text in texts.items():
        path = PurePosixPath(name)
        kind, _, number = path.stem.partition("-")
        if kind == "rank" and number.isdecimal():
            role = "" if str(path.parent) == "." else str(path.parent)
            ranks.setdefault((role, _lines(name, text)), []).append(int(number))
    groups = [StackGroup(role=role, ranks=tuple(sorted(of)), lines=lines) for (role, lines), of in ranks.items()]
    return sorted(groups, key=lambda group: (-len(group.ranks), group.role, group.ranks))


def _lines(name: str, text: str) -> tuple[str, ...]:
    """The frames of the main thread. The process is named where it is stopped or waits for a disk, or where no stack was read."""
    rank = RankEvidence(file=name, lines=tuple(text.splitlines()))
    frames = tuple(frame.place for frame in rank.stack)
    process = next(iter(rank.processes), None)
    if process is None:
        return frames or ("no process was found",)
    if not frames:
        return (
            f"no Python stack: {process.command.strip() or 'its process'}, state {process.state} in {process.wchan}",
        )
    return (f"state {process.state} in {process.wchan}", *frames) if process.state in "TtD" else frames
