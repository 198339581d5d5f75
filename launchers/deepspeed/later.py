"""DeepSpeed's checkpoints in two halves: the training loop collects the states, and the caller's function writes them.

DeepSpeed 0.19 has its own writer for this, `checkpoint.writer.decoupled`. It runs a process for each rank, which would survive a
kill -9 of the rank, and it compiles a kernel for its input and output at the first start. This module needs neither.

DeepSpeed's save_checkpoint() also waits for all ranks several times. Here each rank makes its folder when it writes: no rank waits
for another in the training loop.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from deepspeed import DeepSpeedEngine
from deepspeed import comm as dist
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo, CheckpointEngine
from lib import host_copy
from lib.checkpoint import Checkpoints, Finish


class Later(CheckpointEngine):
    """Replaces DeepSpeed's writer, `then`. Keeps the states until they are to be written."""

    def __init__(self, then: CheckpointEngine) -> None:
        super().__init__()
        self.name = "Later"
        self._then = then
        self._states: dict[str, Any] = {}

    def taken(self, engine: DeepSpeedEngine, folder: Path, tag: str, checkpoints: Checkpoints) -> Finish:
        """A function that writes the engine's state as it is now. All ranks call this."""
        self._states = {}
        with _without_waiting(engine):
            engine.save_checkpoint(str(folder), tag=tag, save_latest=False)
        # By name, because the path differs for each checkpoint. So the copy can reuse its memory.
        paths = {Path(path).name: Path(path) for path in self._states}
        states = {Path(path).name: state for path, state in self._states.items()}
        kept = checkpoints.kept(states, written_by_step(engine))
        self._states = {}

        def write() -> None:
            for name, state in kept().items():
                paths[name].parent.mkdir(exist_ok=True)
                checkpoints.write(_apart(state), paths[name])

        return write

    def preserves_storage_sharing(self) -> bool:
        """False: each tensor is written with a storage of its own, so DeepSpeed need not clone views first."""
        return False

    def makedirs(self, path: str | os.PathLike[str], exist_ok: bool = False) -> None:
        """Nothing: the folder is made when it is written."""

    def save(self, state_dict: Any, path: str) -> None:
        self._states[path] = state_dict

    def load(self, path: str, map_location: Any = None) -> Any:
        return self._then.load(path, map_location)

    def create(self, info: CheckpointCommitInfo) -> None:
        self._then.create(info)

    def commit(self, info: CheckpointCommitInfo) -> bool:
        return True


def written_by_step(engine: DeepSpeedEngine) -> Iterator[torch.Tensor]:
    """The tensors that only the engine's step writes: parameters, their shards in float32, and the optimizer's state."""
    zero = engine.optimizer
    yield from host_copy.written_by_step(engine.module, getattr(zero, "optimizer", zero))
    # Of ZeRO 3, whose optimizer has no parameters between steps.
    yield from getattr(zero, "fp32_partitioned_groups_flat", ())


@contextmanager
def _without_waiting(engine: DeepSpeedEngine) -> Iterator[None]:
    """Leave out what makes save_checkpoint() wait for other ranks: its barriers, and the check that all ranks have one tag."""
    barrier, engine._checkpoint_tag_validation = dist.barrier, lambda _tag: None
    dist.barrier = lambda *_args, **_options: None
    try:
        yield
    finally:
        dist.barrier = barrier
        del engine._checkpoint_tag_validation


def _apart(value: Any) -> Any:
    """The state with a storage of its own for each tensor: torch.save writes the whole storage of a view."""
    if isinstance(value, torch.Tensor):
        return value.clone() if value.untyped_storage().nbytes() != value.nbytes else value
    if isinstance(value, dict):
        return {key: _apart(one) for key, one in value.items()}
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(map(_apart, value))
    return value
