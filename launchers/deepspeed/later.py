"""DeepSpeed's checkpoints in two halves: it gathers its states in the training loop, and they are written on a thread.

DeepSpeed 0.19 has a writer of its own for this, `checkpoint.writer.decoupled`: a process beside each rank, which would live through
a kill -9 of it, and which compiles a kernel for its input and output at the first start. This needs neither.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo, CheckpointEngine


class Later(CheckpointEngine):
    """Replaces DeepSpeed's writer, `then`: what is to be saved is kept until writes() is called."""

    def __init__(self, then: CheckpointEngine) -> None:
        super().__init__()
        self.name = "Later"
        self._then = then
        self._states: dict[str, Any] = {}

    def writes(self, copy: Callable[[Any], Any]) -> Callable[[], None]:
        """What writes the states since the last call, as they are now. `copy` makes the copy that training cannot change."""
        # By name and not by path, which is another for each checkpoint: so that the copy's memory is used again.
        folders = {Path(path).name: Path(path).parent for path in self._states}
        states = copy({Path(path).name: state for path, state in self._states.items()})
        self._states = {}

        def write() -> None:
            for name, state in states.items():
                self._then.save(state, str(folders[name] / name))

        return write

    def preserves_storage_sharing(self) -> bool:
        """No: the copy has a storage for each tensor, and DeepSpeed need not clone the views first."""
        return False

    def save(self, state_dict: Any, path: str) -> None:
        self._states[path] = state_dict

    def load(self, path: str, map_location: Any = None) -> Any:
        return self._then.load(path, map_location)

    def create(self, info: CheckpointCommitInfo) -> None:
        self._then.create(info)

    def commit(self, info: CheckpointCommitInfo) -> bool:
        return True
