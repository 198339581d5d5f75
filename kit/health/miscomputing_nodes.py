"""Finds a node that computes wrong numbers, by running the same steps with the ranks on different nodes.

A bitwise reproducible program gives every rank the same numbers in each run. If a rank's numbers in one run differ from those in
the other runs, the node that had the rank in that run is the suspect. A wrong number reaches all other ranks with the next gradient
sum, so only the earliest difference counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kit.files import untrusted_files
from kit.record import metrics

_FOLDER = "ranks"
# A rank computes these in this order; any other numbers of the rank come after them.
_NAMES = ("forward", "gradient")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One run of the same steps. order: its nodes, in the order of the ranks. numbers: rank -> the numbers that it computed, in
    order.

    A number is (step, name, value). Steps count from the run's own start, or are those that the program reports.
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
    """A rank whose number in one run differs from the other runs. run: index of that run among the placements."""

    rank: int
    step: int
    name: str
    run: int
    node: str


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """The result of comparing the runs.

    compared: how many numbers were compared for the rank with the most; 0 if the program reports none. node: the node that the
    deviation follows; None if there is no deviation, or it follows no single node. suspects: the ranks that differed first.
    """

    compared: int
    parted: bool
    node: str | None
    suspects: tuple[Suspect, ...]


def read_numbers(run_dir: Path) -> dict[int, list[tuple[int, str, object]]]:
    """The numbers of each rank of a run: from ranks/rank-<n>.jsonl, and from records of metrics.jsonl that name a rank."""
    numbers: dict[int, list[tuple[int, str, object]]] = {}
    for path in sorted((run_dir / _FOLDER).glob("rank-*.jsonl")):
        rank = int(path.stem.removeprefix("rank-"))
        with untrusted_files.open_regular(path) as source:
            numbers[rank] = [number for line in source for number in _of_line(line)]
    for record in metrics.records(run_dir):
        by, step = record.get("rank"), record.get("step")
        if isinstance(by, int) and isinstance(step, int):
            of_record = [(step, name, value) for name, value in record.items() if isinstance(value, float)]
            numbers.setdefault(by, []).extend(of_record)
    return numbers


def find(runs: Sequence[Placement]) -> Deviation:
    """The node that the deviation follows, from three or more runs."""
    ranks = sorted(set.intersection(*(set(run.numbers) for run in runs)))
    firsts = {rank: found for rank in ranks if (found := _first_difference(runs, rank)) is not None}
    compared = max((len(runs[0].numbers[rank]) for rank in ranks), default=0)
    if not firsts:
        return Deviation(compared=compared, parted=False, node=None, suspects=())
    earliest = min(firsts.values())
    suspects = []
    for rank, place in firsts.items():
        if place == earliest and (odd := _odd_one([run.numbers[rank][place] for run in runs])) is not None:
            step, name, _ = runs[odd].numbers[rank][place]
            node = runs[odd].node_of(rank)
            suspects.append(Suspect(rank=rank, step=step, name=name, run=odd, node=node))
    nodes = {suspect.node for suspect in suspects}
    return Deviation(
        compared=compared, parted=True, node=nodes.pop() if len(nodes) == 1 else None, suspects=tuple(suspects)
    )


def _of_line(line: bytes) -> Iterator[tuple[int, str, object]]:
    try:
        record = json.loads(line)
    except ValueError:
        return  # the last line is incomplete if its writer was killed
    yield from ((record["step"], name, record[name]) for name in _NAMES if name in record)


def _first_difference(runs: Sequence[Placement], rank: int) -> int | None:
    """The index of a rank's first number that is not the same in all runs. NaN is compared as text and equals itself."""
    columns = zip(*(one.numbers[rank] for one in runs), strict=False)
    return next((place for place, values in enumerate(columns) if len({repr(one) for one in values}) > 1), None)


def _odd_one(values: Sequence[object]) -> int | None:
    """The index of the only value that differs from the others; None if the others do not agree."""
    texts = [repr(one) for one in values]
    alone = [place for place, text in enumerate(texts) if texts.count(text) == 1]
    return alone[0] if len(alone) == 1 and len(set(texts)) == 2 else None
