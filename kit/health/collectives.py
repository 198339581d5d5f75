"""The last collectives of each rank, from torch's flight recorder (kit_recorder.py), and the ranks whose calls differ."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_LINE = re.compile(
    r"^kit: collective (?P<group>\S+) #(?P<number>\d+) (?P<name>\S+) of (?P<kind>\S+) (?P<sizes>\S+)(?P<waits> waits)?$"
)
# Collectives whose tensors have the same shape on all ranks.
_SAME_SHAPE = frozenset({"all_reduce", "allreduce", "reduce", "broadcast", "all_gather", "allgather", "reduce_scatter"})


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One call. number: its sequence number in the process group. sizes: of the tensors, as JSON. line: its number in the file."""

    group: str
    number: int
    name: str
    kind: str
    sizes: str
    waits: bool
    line: int

    @property
    def what(self) -> str:
        """The call in words, for a sentence."""
        return f"{self.name} #{self.number} of {self.kind} {self.sizes}"


@dataclass(frozen=True, kw_only=True)
class Odd:
    """Ranks that differ from the others, by their index. how: order, shape or behind. own, others: calls of the two groups."""

    how: str
    places: tuple[int, ...]
    own: Collective
    others: Collective


def parse(lines: Iterable[tuple[int, str]]) -> list[Collective]:
    """Parse the numbered lines that describe a collective, in their order."""
    collectives = []
    for number, text in lines:
        if one := _LINE.match(text.strip()):
            collectives.append(
                Collective(
                    group=one["group"], number=int(one["number"]), name=one["name"], kind=one["kind"],
                    sizes=one["sizes"], waits=bool(one["waits"]), line=number,
                )
            )  # fmt: skip
    return collectives


def odd(ranks: Sequence[Sequence[Collective]]) -> Odd | None:
    """Find ranks that called another collective, or one of another shape, at the first number where the ranks differ.

    If there are none, find ranks that made fewer calls. None if fewer than two ranks have calls, or if no rank differs.
    """
    # By group, and then by place: with the groups of a wide job, a look at all calls for each of them would take minutes.
    groups: dict[str, dict[int, dict[int, Collective]]] = {}
    for place, rank in enumerate(ranks):
        for one in rank:
            groups.setdefault(one.group, {}).setdefault(place, {})[one.number] = one
    for said in groups.values():
        if len(said) >= 2 and (found := _different_call(said) or _behind(said)):
            return found
    return None


def _different_call(said: Mapping[int, Mapping[int, Collective]]) -> Odd | None:
    for number in sorted(set.intersection(*(set(calls) for calls in said.values()))):
        calls = {place: of[number] for place, of in said.items()}
        if found := _minority("order", calls, {place: c.name for place, c in calls.items()}):
            return found
        if all(c.name in _SAME_SHAPE for c in calls.values()) and (
            found := _minority("shape", calls, {place: f"{c.kind} {c.sizes}" for place, c in calls.items()})
        ):
            return found
    return None


def _minority(how: str, calls: Mapping[int, Collective], words: Mapping[int, str]) -> Odd | None:
    counted = Counter(words.values()).most_common()
    if len(counted) < 2 or counted[0][1] * 2 <= len(words):
        return None
    few = tuple(place for place, word in words.items() if word != counted[0][0])
    most = next(place for place, word in words.items() if word == counted[0][0])
    return Odd(how=how, places=few, own=calls[few[0]], others=calls[most])


def _behind(sequences: Mapping[int, Mapping[int, Collective]]) -> Odd | None:
    last = {place: max(calls) for place, calls in sequences.items()}
    furthest = max(last.values())
    few = tuple(place for place, number in last.items() if number < furthest)
    if not few:
        return None
    ahead = next(place for place, number in last.items() if number == furthest)
    return Odd(how="behind", places=few, own=sequences[few[0]][last[few[0]]], others=sequences[ahead][furthest])
