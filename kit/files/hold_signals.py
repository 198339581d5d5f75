"""Holds signals back during a short step that must not end half done."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay a Ctrl-C or TERM to the end of the block, for a short step that must not be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    told = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(one, lambda number, _frame: came.append(number)) for one in told]
    try:
        yield
    finally:
        for one, handler in zip(told, before, strict=True):
            signal.signal(one, handler)
    for number in came[:1]:
        signal.raise_signal(number)
