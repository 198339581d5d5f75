"""DeepSpeed's checkpoints in two halves: the training loop collects the states, and a thread writes them.

DeepSpeed 0.19 has its own writer for this, `checkpoint.writer.decoupled`. It runs a process for each rank, which would survive a
kill -9 of the rank, and it compiles a kernel for its input and output at the first start. This module needs neither.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo, CheckpointEngine


class Later(CheckpointEngine):
    """Replaces DeepSpeed's writer, `then`. Keeps the states to save until writes() is called."""

    def __init__(self, then: CheckpointEngine) -> None:
        super().__init__()
        self.name = "Later"
        self._then = then
        self._states: dict[str, Any] = {}

    def writes(self, copy: Callable[[Any], Any]) -> Callable[[], None]:
        """A function that writes the states since the last call, as they are now. copy: keeps them from changing in training."""
        # By name, because the path differs for each checkpoint. So the copy can reuse its memory.
        folders = {Path(path).name: Path(path).parent for path in self._states}
        states = copy({Path(path).name: state for path, state in self._states.items()})
        self._states = {}

        def write() -> None:
            for name, state in states.items():
                self._then.save(state, str(folders[name] / name))

        return write

    def preserves_storage_sharing(self) -> bool:
        """False: the copy has a storage for each tensor, so DeepSpeed need not clone views first."""
        return False

    def save(self, state_dict: Any, path: str) -> None:
        self._states[path] = state_dict

    def load(self, path: str, map_location: Any = None) -> Any:
        return self._then.load(path, map_location)

    def create(self, info: CheckpointCommitInfo) -> None:
        self._then.create(info)

    def commit(self, info: CheckpointCommitInfo) -> bool:
        return True
