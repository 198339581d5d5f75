"""Pauses Python's garbage collector while thousands of runs are read. All new objects are kept, so it would find nothing to
free."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Pause the collector within the block. If it was off before, it stays off. Several threads may do this at once."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
