"""Checkpoints in memory for the programs of launchers/: kit_memory, which is on the path of every run.

A program gives the parts of its state: what is this rank's own, and what is equal on all ranks. They are saved every
--checkpoint-memory-every steps. A start continues from them where they are not older than the newest checkpoint in the folder.
"""

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from . import reports
from .checkpoint import Checkpoints

# This rank's own part, and the part that is equal on all ranks (None: there is none).
Parts = tuple[dict[str, Any], dict[str, Any] | None]


class InMemory:
    """The checkpoints in memory of one start. Every method is called by all ranks together.

    found: what the program continues from, or None. `found.state` is this rank's own part, `found.shared` the other one.
    """

    def __init__(self, args: argparse.Namespace, parts: Callable[[], Parts]) -> None:
        self._parts = parts
        self._memory = (
            import_module("kit_memory").Memory(args.checkpoint_memory_every) if args.checkpoint_memory_every else None
        )
        self._checkpoints: Checkpoints | None = None
        self.found: Any = None

    def find(self, checkpoints: Checkpoints) -> bool:
        """Look for a step that is not older than the newest checkpoint in the folder. No file of the folder is read."""
        self._checkpoints = checkpoints
        if self._memory is not None:
            with reports.progress.phase("start"):
                self.found = self._memory.load(at_least=max(0, checkpoints.newest_step()))
        if self.found is not None:
            checkpoints.continues(best=self.found.state.pop("best"))
        return self.found is not None

    def after_step(self, step: int) -> None:
        """Save where the step is due."""
        if self._memory is None or not self._memory.due(step):
            return
        assert self._checkpoints is not None
        with reports.progress.phase("save"):
            own, shared = self._parts()
            self._memory.save(step, own | {"best": self._checkpoints.best}, shared)


def fill(into: Any, stored: Any) -> Any:
    """Copy a stored state into the tensors of a state of the same shape; a DTensor gets its shard. Returns the state."""
    if isinstance(into, torch.Tensor):
        with torch.no_grad():
            (into.to_local() if isinstance(into, DTensor) else into).copy_(stored)
        return into
    if isinstance(into, dict):
        return {key: fill(value, stored[key]) for key, value in into.items()}
    if isinstance(into, list | tuple) and not isinstance(into, torch.Size):
        return type(into)(fill(value, one) for value, one in zip(into, stored, strict=True))
    return stored
