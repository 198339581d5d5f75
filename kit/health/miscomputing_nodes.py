"""Finds a node that computes wrong numbers, by runs of the same steps with the ranks on different nodes.

A program that repeats to the bit gives every rank the same numbers in each of them. Where a rank's numbers part from those that it
has in the other runs, the run that stands alone is the odd one, and the node that had the rank there is the suspect. A wrong number
reaches all other ranks with the next sum of gradients: only the earliest parting counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kit import untrusted_files
from kit.runs import metrics

_FOLDER = "ranks"
# In the order in which a rank computes them; then what the program reports of a rank.
_NAMES = ("forward", "gradient")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One run of the same steps. order: its nodes, in the order of the ranks. numbers: rank -> what it computed, in order.

    A number is (step, name, value); steps count from the run's own start, or are those that the program names.
    """

    run_id: str
    order: tuple[str, ...]
    ranks_per_node: int
    numbers: Mapping[int, Sequence[tuple[int, str, object]]]

    def node_of(self, rank: int) -> str:
        """The node that had the rank."""
        return self.order[rank // self.ranks_per_node]


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A rank whose number in one run is not that of the others. run: which of the placements."""

    rank: int
    step: int
    name: str
    run: int
    node: str


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """What the runs say together.

    compared: numbers of each rank at most; 0 where the program reports none. node: that the deviation follows; None where there is
    none, or it follows no single node. suspects: the ranks that parted first of all.
    """

    compared: int
    parted: bool
    node: str | None
    suspects: tuple[Suspect, ...]


def read(run_dir: Path) -> dict[int, list[tuple[int, str, object]]]:
    """What each rank of a run computed: ranks/rank-<n>.jsonl, and those records of metrics.jsonl that name a rank."""
    found: dict[int, list[tuple[int, str, object]]] = {}
    for path in sorted((run_dir / _FOLDER).glob("rank-*.jsonl")):
        rank = int(path.stem.removeprefix("rank-"))
        with untrusted_files.open_regular(path) as source:
            found[rank] = [number for line in source for number in _of_line(line)]
    for record in metrics.records(run_dir):
        by, step = record.get("rank"), record.get("step")
        if isinstance(by, int) and isinstance(step, int):
            of_record = [(step, name, value) for name, value in record.items() if isinstance(value, float)]
            found.setdefault(by, []).extend(of_record)
    return found


def find(runs: Sequence[Placement]) -> Deviation:
    """The node that the deviation follows, over three runs or more."""
    ranks = sorted(set.intersection(*(set(one.numbers) for one in runs)))
    firsts = {rank: found for rank in ranks if (found := _first_parting(runs, rank)) is not None}
    compared = max((len(runs[0].numbers[rank]) for rank in ranks), default=0)
    if not firsts:
        return Deviation(compared=compared, parted=False, node=None, suspects=())
    earliest = min(firsts.values())
    suspects = []
    for rank, place in firsts.items():
        if place == earliest and (odd := _odd_one([one.numbers[rank][place] for one in runs])) is not None:
            step, name, _ = runs[odd].numbers[rank][place]
            node = runs[odd].node_of(rank)
            suspects.append(Suspect(rank=rank, step=step, name=name, run=odd, node=node))
    nodes = {one.node for one in suspects}
    return Deviation(
        compared=compared, parted=True, node=nodes.pop() if len(nodes) == 1 else None, suspects=tuple(suspects)
    )


def _of_line(line: bytes) -> Iterator[tuple[int, str, object]]:
    try:
        record = json.loads(line)
    except ValueError:
        return  # cut off with its writer
    yield from ((record["step"], name, record[name]) for name in _NAMES if name in record)


def _first_parting(runs: Sequence[Placement], rank: int) -> int | None:
    """The place of the first number of a rank that is not the same in all runs. NaN, as text, equals itself."""
    columns = zip(*(one.numbers[rank] for one in runs), strict=False)
    return next((place for place, values in enumerate(columns) if len({repr(one) for one in values}) > 1), None)


def _odd_one(values: Sequence[object]) -> int | None:
    """The place of the one value that the others, which agree, do not have."""
    texts = [repr(one) for one in values]
    alone = [place for place, text in enumerate(texts) if texts.count(text) == 1]
    return alone[0] if len(alone) == 1 and len(set(texts)) == 2 else None
