"""Searches n ordered changes, with several states in one round.

State i has the first i changes: state 0 is the good run, state n the bad one. Halving an interval with a good lower end and a bad
upper end is `git bisect`'s search of a linear history. It needs no assumption on how changes interact: some good state always comes
directly before a bad one, and the change between the two makes it bad, together with the changes before it. So one ordered list is
halved, and no minimal set of changes is searched. Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating
Failure-Inducing Input", IEEE TSE 28(2), 2002) also isolates such a pair among unordered changes, but needs up to n^2 + 3n tests.

A round with w states leaves 1/(w+1) of the interval: at most ceil(log(n) / log(w+1)) rounds if no state is untestable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

# `untestable`: the state could not be submitted, or its run says nothing, like code 125 of `git bisect run`.
Verdict = Literal["good", "bad", "untestable"]


def interval(verdicts: Mapping[int, Verdict], last: int) -> tuple[int, int]:
    """The first bad state and the nearest good one below it. An end without a verdict counts as good (lower) or bad (upper)."""
    bad = min((state for state, one in verdicts.items() if one == "bad" and state > 0), default=last)
    good = max((state for state, one in verdicts.items() if one == "good" and state < bad), default=0)
    return good, bad


def next_states(verdicts: Mapping[int, Verdict], last: int, width: int) -> list[int]:
    """Up to `width` states that divide the interval equally, and the ends if they have no verdict.

    Empty: the search is finished.
    """
    good, bad = interval(verdicts, last)
    open_ends = [end for end in (0, last) if end not in verdicts]
    between = [state for state in range(good + 1, bad) if state not in verdicts]
    count = min(width, len(between))
    return sorted([*open_ends, *(between[(n * (len(between) + 1)) // (count + 1) - 1] for n in range(1, count + 1))])


def most_rounds(last: int, width: int) -> int:
    """The maximum number of rounds if no state is untestable."""
    rounds, left = 0, last
    while left > 1:
        left, rounds = math.ceil(left / (min(width, left - 1) + 1)), rounds + 1
    return max(rounds, 1)
