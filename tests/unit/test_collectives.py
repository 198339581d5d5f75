"""Finds the rank that called another collective than the others, from the records of torch's flight recorder."""

from __future__ import annotations

import pytest

from kit.health import collectives
from kit.health.collectives import Collective

SUM, SMALL, CAST = "all_reduce of Float [[1000]]", "all_reduce of Float [[10]]", "broadcast of Float [[1000]]"


def rank(*calls: str, first: int = 1, group: str = "0") -> list[Collective]:
    """A rank's last calls; each is what stands behind the number."""
    lines = [f"kit: collective {group} #{first + n} {call}" for n, call in enumerate(calls)]
    return collectives.parse(enumerate(lines, start=1))


@pytest.mark.parametrize(
    ("sick", "how"),
    [
        (rank(SUM, SUM, CAST), "order"),
        (rank(SUM, SUM, SMALL), "shape"),
        (rank(SUM, SUM), "behind"),
        # It has gone on behind what only it called: the first difference counts.
        (rank(SUM, CAST, SUM, SUM), "order"),
    ],
    ids=["order", "shape", "behind", "order, and continued"],
)
def test_the_rank_that_is_apart(sick: list[Collective], how: str) -> None:
    ranks = [rank(SUM, SUM, SUM) if place != 5 else sick for place in range(8)]
    found = collectives.odd(ranks)
    assert found is not None
    assert (found.how, found.places) == (how, (5,))


def test_ranks_that_are_all_alike_are_none() -> None:
    assert collectives.odd([rank(SUM, SUM)] * 8) is None
    assert collectives.odd([rank(SUM), []]) is None, "one rank alone is not an odd one"
    assert collectives.odd([rank(SUM), rank(SMALL)]) is None, "of two that differ nobody knows which is right"
    apart = [rank("all_to_all of Float [[10]]"), *[rank("all_to_all of Float [[20]]")] * 2]
    assert collectives.odd(apart) is None, "each rank may send as much as it likes"


def test_groups_are_compared_each_by_itself() -> None:
    pairs = [[*rank(SUM, SUM), *rank(CAST, group=f"g{place // 2}")] for place in range(4)]
    assert collectives.odd(pairs) is None


def test_lines_that_were_cut_off_are_left_out() -> None:
    text = ["kit: collective 0 #1 all_reduce of Float [[1]] waits", "kit: collective 0 #2 all_red", "", "no answer"]
    (one,) = collectives.parse(enumerate(text, start=1))
    assert one.waits
    assert one.what == "all_reduce #1 of Float [[1]]"
