"""Valid numbers that a rule suggests in place of one that it refuses."""

from __future__ import annotations


def multiple(near: int, of: int) -> int:
    """The multiple of `of` nearest to `near`; at least `of` itself."""
    return max(1, round(near / of)) * of


def divisor(near: int, of: int) -> int:
    """The largest divisor of `of` that is at most `near`; at least 1."""
    return next(number for number in range(max(1, min(near, of)), 0, -1) if of % number == 0)
