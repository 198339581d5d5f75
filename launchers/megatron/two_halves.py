"""Megatron's distributed checkpoints in two halves: planned and copied in the training loop, written by the caller's thread.

Megatron's own asynchronous save forks a process of each rank, and ends with collectives in the training loop at a later save. Here
a thread writes, with collectives on the process group of the checkpoints. So a save is complete as soon as it is on disk.
"""

from pathlib import Path
from queue import Queue
from typing import Any

import torch
import torch.distributed as dist
from lib.checkpoint import Checkpoints, Finish
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedStateDict, ShardedTensor
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

# Megatron would start a process that serves this queue to its forked writers. It would stay behind when its rank is killed.
filesystem_async._results_queue = Queue()


class TwoHalves(TorchDistSaveShardedStrategy):
    """The torch_dist format. dist_checkpointing.save(..., async_sharded_save=True) is the first half, writes() the second.

    is_checked: the first half was done once. Then all ranks need not check again that their shards make up the state.
    _live: the storages of the state's tensors. Megatron copies parts of tensors; such a copy is not live and is not copied again.
    """

    def __init__(self) -> None:
        # In the first two saves all ranks plan together what goes where. The plan is kept: the state never changes its form.
        super().__init__("torch_dist", 1, cached_metadata=True)
        self._writer: FileSystemWriterAsync
        self._metadata: Any = None
        self._live: set[int] = set()
        self.is_checked = False

    def writes(self, folder: Path, checkpoints: Checkpoints) -> Finish:
        """A function that writes the state as it is now. All ranks call this, and the returned function."""
        writer, metadata = self._writer, self._metadata
        buckets = writer.write_buckets or []
        live = [[tensor if self._is_live(tensor) else None for _, tensor in tensors] for _, _, (_, tensors) in buckets]
        kept = checkpoints.copy(live)

        def write() -> None:
            wrote: list[Any] | None = None  # stays None on a rank that failed
            failure = None
            done: list[Any] = []
            try:
                for (path, key, (others, tensors)), copies in zip(buckets, kept, strict=True):
                    pairs = zip(tensors, copies, strict=True)
                    items = [(item, tensor if copied is None else copied) for (item, tensor), copied in pairs]
                    done += _write([writer.transforms], (path, key, (others, items)))
            except Exception as error:  # noqa: BLE001 - raised below, once no rank waits for this one
                failure = error
            else:
                wrote = done
            every: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(every, wrote, group=checkpoints.group)
            if failure is not None:
                raise failure
            if dist.get_rank() == 0 and None not in every:
                writer.finish(metadata, every)
                save_config(CheckpointingConfig(self.backend, self.version), str(folder))

        return write

    def async_save(self, sharded_state_dict: ShardedStateDict, checkpoint_dir: Path) -> AsyncRequest:
        """The first half, as Megatron does it. Notes which tensors are live."""
        shards = [one.data for one in nested_values(sharded_state_dict) if isinstance(one, ShardedTensor)]
        self._live = {data.untyped_storage().data_ptr() for data in shards if data is not None}
        return super().async_save(sharded_state_dict, checkpoint_dir)

    def _is_live(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._live

    def _get_save_and_finalize_callbacks(self, writer: FileSystemWriterAsync, planned: Any) -> AsyncRequest:
        """Keep the plan. The returned request, for Megatron's own way, is not used."""
        self._writer, (_, self._metadata, _), self.is_checked = writer, planned, True
        return super()._get_save_and_finalize_callbacks(writer, planned)


def _write(transforms: list[Any], bucket: Any) -> list[Any]:
    """Write one file. Returns torch's WriteResult of each item in it."""
    result: Queue[Any] = Queue()
    count: Queue[Any] = Queue()
    count.put(None)
    FileSystemWriterAsync.write_preloaded_data(transforms, 0, bucket, result, count, use_fsync=True)
    _, wrote = result.get()
    if isinstance(wrote, Exception):
        raise wrote
    return wrote
