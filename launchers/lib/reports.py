"""`progress` of kit_rank, which every run has on its path; where a program runs by itself, the same calls that do nothing."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Protocol


class Progress(Protocol):
    """What a program reports to whoever looks at the run: see kit_rank."""

    def step(self, done: int) -> None: ...

    def phase(self, name: str) -> AbstractContextManager[None]: ...


class _Silent:
    def step(self, done: int) -> None:
        pass

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        yield


def _progress() -> Progress:
    try:
        found: Progress = import_module("kit_rank").progress
    except ImportError:
        return _Silent()
    return found


progress = _progress()
