"""`kit_keep` in a run without `[retry] keep`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["run"]

T = TypeVar("T")


def run(function: Callable[[], T]) -> T:
    """Call the function once, and return what it returns."""
    return function()
