"""A thread that repeats something small beside the main work, for as long as a block runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def every(seconds: float, call: Callable[[], None], *, name: str) -> Iterator[None]:
    """Call `call` after each so many seconds of the block, in a thread of that name, and never after the block's end.

    `call` handles its own errors: one that it raises ends the calls, and the block continues.
    """
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(seconds):
            call()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
