"""A rank of `benchmarks saves`: saves one sharded state by DCP, by the kit and by torch.save, in turn. Needs torch.

    python _saves_peers.py FOLDER BYTES

Rank 0 writes FOLDER/found.json: the bytes of the state, and for each way the median seconds of a save in the foreground, and those
for which a save in the background keeps a training loop from its work. Every way ends with the bytes on the disk (fsync). DCP and
torch.save compute a crc32 of each tensor, as they do by default; DCP is measured without it, too. Each round begins with another
way, and each way removes its files: the kernel writes faster to memory that was just freed.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from lib import checkpoint, host_copy, ranks
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

ROUNDS = 5  # the first one is left out
folder, state_bytes = Path(sys.argv[1]), int(sys.argv[2])


class Training:
    """A sharded model whose weights and two moments have the bytes. A step is as short as it can be."""

    def __init__(self, world: ranks.Ranks) -> None:
        layers = 8
        width = int((state_bytes / 12 / layers) ** 0.5)
        torch.manual_seed(7)
        self.net = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
        mesh = init_device_mesh("cpu", (world.ddp_world_size,))
        for part in (*self.net, self.net):
            fully_shard(part, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        self.batch = torch.randn(8, width)
        self.bytes = 12 * layers * width**2

    def backward(self) -> None:
        self.net(self.batch).square().mean().backward()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Any]:
        weights, updates = get_state_dict(self.net, self.optimizer)
        return {"model": weights, "optimizer": updates}


def timed(work: Callable[[], object]) -> float:
    """Seconds from when all ranks start to when all are done."""
    dist.barrier()
    began = time.perf_counter()
    work()
    dist.barrier()
    return time.perf_counter() - began


class Dcp:
    """torch.distributed.checkpoint: save, and async_save with its default staging."""

    def __init__(self, training: Training, *, crc32: bool) -> None:
        self.crc32, self._training, self._numbers = crc32, training, iter(range(1000))
        self._group = dist.new_group(backend="gloo")

    def foreground(self) -> float:
        target = self._target()
        return timed(lambda: dcp.save(self._training.state(), checkpoint_id=target, process_group=self._group))

    def background(self) -> float:
        target = self._target()
        began = time.perf_counter()
        writing = dcp.async_save(self._training.state(), checkpoint_id=target, process_group=self._group)
        took = time.perf_counter() - began
        self._training.backward()
        self._training.step()
        writing.result()
        return took

    def _target(self) -> Path:
        return folder / f"dcp-{next(self._numbers)}"


class Kit:
    """launchers/lib/checkpoint.py, as launchers/fsdp uses it. It computes a crc32 of each file itself."""

    crc32 = False

    def __init__(self, training: Training) -> None:
        self._training, self._step = training, 0
        self._checkpoints = checkpoint.Checkpoints(folder / "kit", world, {}, keep=1, background=True)

    def foreground(self) -> float:
        return timed(lambda: self._save(last=True))

    def background(self) -> float:
        self._save()
        self._training.backward()
        self._training.step()  # waits for what is not copied yet, which counts
        took: float = self._checkpoints.took
        self._checkpoints.wait()
        return took

    def _save(self, *, last: bool = False) -> None:
        def start(target: Path) -> checkpoint.Finish:
            written_by_step = host_copy.written_by_step(self._training.net, self._training.optimizer)
            kept = self._checkpoints.kept(self._training.state(), written_by_step)
            return lambda: dcp.save(
                kept(),
                storage_writer=self._checkpoints.distributed_writer(target),
                process_group=self._checkpoints.group,
            )

        self._step += 1
        self._checkpoints.save(self._step, start, last=last)


class Plain:
    """torch.save of the state in one file, as a single rank would. It has nothing for the background."""

    crc32 = True

    def __init__(self, training: Training) -> None:
        self._training = training

    def foreground(self) -> float:
        return timed(self._save)

    def background(self) -> float:
        return 0.0

    def _save(self) -> None:
        weights = {key: _local(value) for key, value in self._training.state()["model"].items()}
        moments = [
            {key: _local(value) for key, value in one.items()} for one in self._training.optimizer.state.values()
        ]
        with (folder / "plain.pt").open("wb") as file:
            torch.save({"model": weights, "moments": moments}, file)
            os.fsync(file.fileno())


def _local(value: Any) -> Any:
    return value.to_local() if hasattr(value, "to_local") else value


def median(values: list[float]) -> float:
    """The median without the first round, the longest of all ranks."""
    longest: float = ranks.largest(statistics.median(values[1:]), world=world)[0]
    return longest


def compare() -> dict[str, Any]:
    """All ways in turn."""
    training = Training(world)
    training.backward()
    training.step()
    ways: dict[str, Any] = {
        "DCP": Dcp(training, crc32=True),
        "DCP without its crc32": Dcp(training, crc32=False),
        "kit, sharded": Kit(training),
    }
    if world.ddp_world_size == 1:
        ways["torch.save"] = Plain(training)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    stalls: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS):
        first = number % len(ways)
        for name in [*ways][first:] + [*ways][:first]:
            torch.serialization.set_crc32_options(ways[name].crc32)  # of each tensor, by torch
            seconds[name].append(ways[name].foreground())
            stalls[name].append(ways[name].background())
            for left in (*folder.glob("dcp-*"), folder / "plain.pt") if world.is_main_process else ():
                shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
            dist.barrier()
    found = {name: {"seconds": median(seconds[name]), "stall": median(stalls[name])} for name in ways}
    return {"bytes": training.bytes, "ways": found}


if __name__ == "__main__":
    with ranks.started("cpu") as world:
        result = compare()
        if world.is_main_process:
            (folder / "found.json").write_text(json.dumps(result))
