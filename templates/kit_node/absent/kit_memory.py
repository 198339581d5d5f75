"""`kit_memory` in a run without `[checkpoint] memory_every`: no step is due, and none is there."""

from __future__ import annotations

__all__ = ["Memory"]


class Memory:
    """The methods of the real one. They need no torch, and no other rank."""

    every, took = 0, 0.0

    def __init__(
        self,
        every: int | None = None,
        *,
        gather: object = None,
        path: str | None = None,
        node: str | None = None,
        rank: int | None = None,
    ) -> None:
        pass

    def due(self, step: int) -> bool:
        """Whether `step` is to be saved: never."""
        return False

    def newest(self) -> None:
        """The newest step: None."""

    def load(self, *, at_least: int = 0) -> None:
        """The newest step, with its state: None."""

    def save(self, step: int, state: object, shared: object = None) -> None:
        """Keep nothing."""

    def wait(self) -> None:
        """Wait for nothing."""

    def close(self) -> None:
        """Close nothing."""
