"""Numbers that a rule suggests instead of one that it refuses."""

from __future__ import annotations


def multiple(near: int, of: int) -> int:
    """The multiple of `of` that is nearest to a number, and at least `of` itself."""
    return max(1, round(near / of)) * of


def divisor(near: int, of: int) -> int:
    """The largest divisor of `of` that is not above a number; 1 where there is no other."""
    return next(number for number in range(max(1, min(near, of)), 0, -1) if of % number == 0)
