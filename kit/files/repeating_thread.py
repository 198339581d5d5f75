"""Calls a small function repeatedly in a thread while a block runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def every(seconds: float, call: Callable[[], None], *, name: str) -> Iterator[None]:
    """Call `call` every `seconds` during the block, in a thread named `name`, and never after the block's end.

    `call` handles its own errors: an error that it raises ends the calls, and the block continues.
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
