"""Search over n changes in order, with several states in one round.

State i has the first i changes: state 0 is the good run, state n the bad one. Halving an interval with a good lower and a bad upper
end is `git bisect`'s search of a linear history. It needs no assumption on how changes work together: whatever happens between, a
good state stands right below a bad one, and the change between the two is one that makes it bad, with those before it. That is why
the list is ordered once and halved, and no set of changes is minimized: delta debugging (Zeller and Hildebrandt, "Simplifying and
Isolating Failure-Inducing Input", IEEE TSE 28(2), 2002) isolates such a pair among unordered changes too, in up to n^2 + 3n tests.

A round with w states leaves 1/(w+1) of the interval: at most ceil(log(n) / log(w+1)) rounds where every state says something.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

# `untestable`: the state could not be submitted, or its run says nothing, as code 125 of `git bisect run`.
Verdict = Literal["good", "bad", "untestable"]


def interval(verdicts: Mapping[int, Verdict], last: int) -> tuple[int, int]:
    """The first bad state and the nearest good one below it. The ends count as good and bad while they are not known."""
    bad = min((state for state, one in verdicts.items() if one == "bad" and state > 0), default=last)
    good = max((state for state, one in verdicts.items() if one == "good" and state < bad), default=0)
    return good, bad


def next_states(verdicts: Mapping[int, Verdict], last: int, width: int) -> list[int]:
    """Up to `width` states that cut the interval into equal parts; the ends too while they are not known. Empty: it is over."""
    good, bad = interval(verdicts, last)
    open_ends = [end for end in (0, last) if end not in verdicts]
    between = [state for state in range(good + 1, bad) if state not in verdicts]
    count = min(width, len(between))
    return sorted([*open_ends, *(between[(n * (len(between) + 1)) // (count + 1) - 1] for n in range(1, count + 1))])


def most_rounds(last: int, width: int) -> int:
    """How many rounds it takes at most, where every state says something."""
    rounds, left = 0, last
    while left > 1:
        left, rounds = math.ceil(left / (min(width, left - 1) + 1)), rounds + 1
    return max(rounds, 1)
