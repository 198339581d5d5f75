"""The recording of what the kit reads (traced_inputs.py): whether it runs. Small caches are read and written while it pauses.

It is a module of its own because every command that reads a cache imports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

active: list[Any] = []


@contextmanager
def paused() -> Iterator[None]:
    """Record nothing inside of the `with` block."""
    before = active[:]
    active.clear()
    try:
        yield
    finally:
        active.extend(before)
