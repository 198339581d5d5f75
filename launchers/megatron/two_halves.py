"""Megatron's distributed checkpoints in two halves: planned in the training loop, written by the caller's thread.

Megatron's own asynchronous save forks a process of each rank, and ends with collectives in the training loop at a later save. Here
a thread writes, with collectives on the process group of the checkpoints. So a save is complete as soon as it is on disk.
"""

from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import torch
import torch.distributed as dist
from lib import host_copy
from lib.checkpoint import Checkpoints, Finish
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies import torch as torch_strategy
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.optimizer import MegatronOptimizer
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItemType

# Megatron would start a process that serves this queue to its forked writers. It would stay behind when its rank is killed.
filesystem_async._results_queue = Queue()


class _Writer(FileSystemWriterAsync):
    """Megatron's writer, in one file for each rank, without the copies that it makes of parts of tensors in the training loop."""

    def prepare_write_data(self, plan: SavePlan, planner: SavePlanner) -> None:
        """Note this rank's bytes and tensors as they are."""
        # item (torch's WriteItem): which part of a whole tensor this is, or which object. data: that part, or pickled bytes.
        found = [(item, planner.resolve_data(item)) for item in plan.items]
        others = [(item, data) for item, data in found if item.type == WriteItemType.BYTE_IO]
        # detach() shares the memory of the training's tensors. checkpoints.kept() below decides when they are copied.
        tensors = [(item, data.detach()) for item, data in found if item.type != WriteItemType.BYTE_IO]
        # The prefix is __RANK_, so each rank writes a file of another name.
        name = f"{plan.storage_data.prefix}0.distcp"
        # Megatron's form: path, name in the metadata, contents. Empty on a rank whose shards another rank writes.
        self.write_buckets = [(str(Path(self.checkpoint_dir, name)), name, (others, tensors))] if found else []
        self.results_queue = filesystem_async._results_queue


# Megatron's strategy looks this name up in its module at each save. So it makes a _Writer from now on.
torch_strategy.FileSystemWriterAsync = _Writer


class TwoHalves(TorchDistSaveShardedStrategy):
    """The torch_dist format. dist_checkpointing.save(..., async_sharded_save=True) is the first half, writes() the second.

    is_checked: the first half was done once. Then all ranks need not check again that their shards make up the state.
    """

    def __init__(self) -> None:
        # In the first two saves all ranks plan together what goes where. The plan is kept: the state never changes its form.
        super().__init__("torch_dist", 1, cached_metadata=True)
        self._writer: FileSystemWriterAsync
        self._metadata: Any = None  # on rank 0: the shape of each tensor and its shards; None on other ranks
        self.is_checked = False

    def writes(self, folder: Path, checkpoints: Checkpoints, later: Iterator[torch.Tensor]) -> Finish:
        """A function that writes the state as it is now. All ranks call this, and the returned function.

        later: the tensors that only the optimizer's step writes.
        """
        # Those of this save: write() must not read them from self, which the next save changes.
        writer, metadata = self._writer, self._metadata
        buckets = writer.write_buckets or []  # one, or none on a rank that writes nothing
        # A list of tensors for each bucket. In the background, kept() returns copies in host memory, in the same order.
        kept = checkpoints.kept([[tensor for _, tensor in tensors] for _, _, (_, tensors) in buckets], later)

        def write() -> None:
            wrote: list[Any] | None = None  # stays None on a rank that failed
            failure = None
            done: list[Any] = []
            try:
                for (path, key, (others, tensors)), copies in zip(buckets, kept(), strict=True):
                    items = [(item, _apart(copied)) for (item, _), copied in zip(tensors, copies, strict=True)]
                    done += _write([writer.transforms], (path, key, (others, items)))
                    checkpoints.wrote(Path(path))
            except Exception as error:  # noqa: BLE001 - raised below, once no rank waits for this one
                failure = error
            else:
                wrote = done
            every: list[Any] = [None] * dist.get_world_size()
            # every[i]: the WriteResults of rank i, with file and offset of each shard. All ranks call this, also one that failed:
            # otherwise the others would wait for it. The group is gloo, apart from that of the training's collectives.
            dist.all_gather_object(every, wrote, group=checkpoints.group)
            if failure is not None:
                raise failure
            # Where a rank failed, no metadata is written. lib/checkpoint.py then raises that rank's error on all ranks.
            if dist.get_rank() == 0 and None not in every:
                writer.finish(metadata, every)  # writes .metadata, torch's index of all shards
                # metadata.json: name and version of the format, for dist_checkpointing.load.
                save_config(CheckpointingConfig(self.backend, self.version), str(folder))

        return write

    def _get_save_and_finalize_callbacks(self, writer: FileSystemWriterAsync, planned: Any) -> AsyncRequest:
        """Keep the plan. The returned request, for Megatron's own way, is not used."""
        # planned: the writer again, the metadata, and torch's wrapper of the process group that planned.
        self._writer, (_, self._metadata, _), self.is_checked = writer, planned, True
        return super()._get_save_and_finalize_callbacks(writer, planned)


def written_by_step(net: torch.nn.Module, optimizer: MegatronOptimizer) -> Iterator[torch.Tensor]:
    """The tensors that only the optimizer's step writes: the parameters, their copies in float32, and the moments."""
    # get_megatron_optimizer returns a ChainedOptimizer. Its parts wrap the Adam of torch, Apex or Transformer Engine.
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        if one.optimizer is not None:  # None: a rank without parameters of this kind
            yield from host_copy.written_by_step(net, one.optimizer)


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in host memory with a storage of its own: torch.save writes the whole storage of a view."""
    tensor = tensor.cpu()
    # On a CPU, .cpu() returns its argument: perhaps a slice of a flat buffer, with all of that buffer's storage.
    return tensor.clone() if tensor.untyped_storage().nbytes() != tensor.nbytes else tensor


def _write(transforms: list[Any], bucket: Any) -> list[Any]:
    """Write one file. Returns torch's WriteResult of each item in it."""
    result: Queue[Any] = Queue()
    count: Queue[Any] = Queue()
    # Megatron's function takes an item from this queue when it ends, and would wait for one.
    count.put(None)
    FileSystemWriterAsync.write_preloaded_data(transforms, 0, bucket, result, count, use_fsync=True)
    _, wrote = result.get()
    if isinstance(wrote, Exception):
        raise wrote
    return wrote
