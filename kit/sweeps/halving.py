"""Stops bad points early: asynchronous successive halving.

L. Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020. No point waits for others: it is judged by those
that have come as far when it comes there. Hyperband is this with several values of `first`, side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kit.spec.sweep import Halving

Reports = Mapping[int, float]
"""A point's metric by the step that it was reported with."""


def rung(rule: Halving, number: int) -> int:
    """Steps of the judgement `number`, from 0 on."""
    return int(rule.first * rule.factor**number)


def at(reported: Reports, step: int) -> float | None:
    """The metric at the first report at or after `step`; None before that."""
    after = [one for one in reported if one >= step]
    return reported[min(after)] if after else None


def verdict(rule: Halving, goal: str, mine: Reports, others: Sequence[Reports]) -> int | None:
    """The step at which a point is to stop; None while it continues.

    It continues while it is among the best 1/factor, rounded down but at least one, of all that have come to the same judgement.
    Before there are `factor` of them nobody is stopped. What is not a number (NaN) is the worst.
    """
    number = 0
    while (value := at(mine, step := rung(rule, number))) is not None:
        reached = [one for reported in others if (one := at(reported, step)) is not None]
        if len(reached) + 1 >= rule.factor:
            better = sum(_cost(one, goal) < _cost(value, goal) for one in reached)
            if better >= max(1, (len(reached) + 1) // rule.factor):
                return step
        number += 1
    return None


def _cost(value: float, goal: str) -> float:
    if math.isnan(value):
        return math.inf
    return value if goal == "min" else -value
