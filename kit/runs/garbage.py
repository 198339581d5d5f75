"""Pauses Python's garbage collector while thousands of runs are read: all that is made then is kept, so it would look in vain."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """A collector that was off before stays off; two threads may pause it at once."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
