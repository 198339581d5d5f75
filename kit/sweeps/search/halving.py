"""Stops bad points early: asynchronous successive halving.

L. Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020. No point waits for others: when it reaches a
rung, it is compared with the points that have already reached it. Hyperband is several of these, with different values of `first`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kit.schema.sweep import Halving

Reports = Mapping[int, float]
"""A point's metric by step."""


def rung(rule: Halving, number: int) -> int:
    """The step of rung `number`, counted from 0."""
    return int(rule.first * rule.factor**number)


def at(reported: Reports, step: int) -> float | None:
    """The metric in the first report at or after `step`; None if there is no such report yet."""
    after = [one for one in reported if one >= step]
    return reported[min(after)] if after else None


def verdict(rule: Halving, goal: str, mine: Reports, others: Sequence[Reports]) -> int | None:
    """The step at which a point must stop; None while it continues.

    A point continues while it is among the best 1/factor (rounded down, at least one) of all points that have reached the same
    rung. Before `factor` points have reached it, none is stopped. NaN counts as the worst value.
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
