"""`progress` of kit_rank and the event of kit_memory, which are on the path of every run. Outside of a run they do nothing."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Protocol


class StepReporter(Protocol):
    """Reports the program's progress to the kit: see kit_rank."""

    def step(self, done: int) -> None: ...

    def phase(self, name: str) -> AbstractContextManager[None]: ...


class _Silent:
    def step(self, done: int) -> None:
        pass

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        yield


def _progress() -> StepReporter:
    try:
        found: StepReporter = import_module("kit_rank").progress
    except ImportError:
        return _Silent()
    return found


def resumed(step: int) -> None:
    """Add to the run's events that the program continues from a checkpoint in its folder. Called by one rank."""
    try:
        import_module("kit_events").record_resumed(step, "file")
    except ImportError:
        return


progress = _progress()
