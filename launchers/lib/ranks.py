"""The process group, from the environment that torchrun and the kit's worker script set.

Read here: RANK, WORLD_SIZE, LOCAL_RANK, NODE_RANK (or torchrun's GROUP_RANK), MASTER_ADDR, MASTER_PORT. Without RANK
the program is a group of one process, so that a single process needs no separate code.
"""

import ctypes
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist

from . import device as devices
from . import keep, process_exit, reports
from .faults import Refused

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process and the group of all ranks. The names are those of nanochat."""

    ddp_rank: int  # 0 to ddp_world_size - 1
    ddp_world_size: int
    ddp_local_rank: int  # on this node
    nodes: int
    device: torch.device
    backend: str  # of the training's collectives: nccl or gloo
    control: dist.ProcessGroup  # gloo, separate from the training's group: flags and totals need no GPU

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes metrics and prints."""
        return self.ddp_rank == 0


@contextmanager
def started(device: str = "auto") -> Iterator[Ranks]:
    """Join the process group, and leave it at the end. `device` is auto, cpu or cuda."""
    _die_with_torchrun()
    use_gpu = devices.use_gpu(device)
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    with reports.progress.phase("rendezvous"):
        if use_gpu:
            torch.cuda.set_device(_gpu_index())
            torch.set_float32_matmul_precision("high")  # TF32: lib/metrics.py counts fp32 runs against its peak
            # With a device NCCL connects now, on the right GPU, and barriers need not guess the GPU.
            device_id = torch.device("cuda", _gpu_index())
            dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device_id, **alone)
        else:
            dist.init_process_group("gloo", **alone)
    failed = True
    try:
        with reports.progress.phase("rendezvous"):
            world = _gather_ranks(use_gpu)
        yield world
        failed = False
    except SystemExit:  # a stop on request: all ranks leave together
        failed = False
        raise
    finally:
        # After an error other ranks may be inside an NCCL collective, and destroying the group would wait for them.
        if not (failed and use_gpu):
            dist.destroy_process_group()


def run(program: Callable[[Ranks], int], device: str) -> NoReturn:
    """Run `program` in the process group, leave the group, and exit with the program's code.

    With `[retry] keep`, a rank that outlives another one runs it again: in a new group, from the newest checkpoint.
    """

    def once() -> int:
        with started(device) as world:
            return program(world)

    process_exit.exit_with(lambda: keep.run(once))


def _die_with_torchrun() -> None:
    """End this rank with torchrun, which starts ranks in their own sessions: if it is killed, nobody else stops them."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        pr_set_pdeathsig = 1  # prctl(2), from linux/prctl.h
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _gpu_index() -> int:
    """The index of this rank's GPU among the visible ones. It is 0 where Slurm shows each task only its own GPU."""
    count = torch.cuda.device_count()
    return 0 if count == 1 else int(os.environ.get("LOCAL_RANK", "0"))


def _gather_ranks(use_gpu: bool) -> Ranks:
    host = socket.gethostname()
    # torchrun's number of the node, or the kit's. Otherwise the host name tells nodes apart.
    node = os.environ.get("GROUP_RANK") or os.environ.get("NODE_RANK") or host
    gpu = f"{host} {torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}" if use_gpu else ""
    control = dist.new_group(backend="gloo")
    seen: list[tuple[str, str]] = [("", "")] * dist.get_world_size()
    dist.all_gather_object(seen, (node, gpu), group=control)
    # By UUID: two ranks may call one card by different indices.
    gpus = [gpu for _, gpu in seen if gpu]
    if gpus and len(set(gpus)) < len(seen):
        raise SystemExit(
            f"{len(seen)} ranks on {len(set(gpus))} GPUs: NCCL needs a GPU for each rank. "
            "Ask for as many GPUs as ranks, or --device cpu."
        )
    return Ranks(
        ddp_rank=dist.get_rank(),
        ddp_world_size=dist.get_world_size(),
        ddp_local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        nodes=len({node for node, _ in seen}),
        device=torch.device("cuda", torch.cuda.current_device()) if use_gpu else torch.device("cpu"),
        backend="nccl" if use_gpu else "gloo",
        control=control,
    )


def total(*values: float, world: Ranks) -> list[float]:
    """Each value summed over all ranks, in float64."""
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, group=world.control)
    return tensor.tolist()


def largest(*values: float, world: Ranks) -> list[float]:
    """The largest value of any rank, for each value, in float64."""
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=world.control)
    return tensor.tolist()


def by_first(make: Callable[[], Made], world: Ranks) -> Made:
    """Call `make` on the first rank and give its result to all ranks. The program ends here where it raises Refused or OSError."""
    # The result and the message of an error. Rank 0 sends both, so that all ranks end together and none waits for the
    # others.
    box: list[Any] = [None, None]
    if world.is_main_process:
        try:
            box = [make(), None]
        except Refused as error:
            box = [None, error.message + (f"\n  try: {error.hint}" if error.hint else "")]
        except OSError as error:
            box = [None, f"{error.filename}: {error.strerror}"]
    dist.broadcast_object_list(box, src=0, group=world.control)
    made, problem = box
    if problem is not None:
        raise SystemExit(problem if world.is_main_process else 1)
    return cast("Made", made)


def share(what: str, amount: int, world: Ranks, accumulate: int = 1) -> int:
    """`amount` per rank and micro-step. Where it does not divide, the program ends with an error that shows the numbers."""
    parts = world.ddp_world_size * accumulate
    if amount < parts or amount % parts:
        raise SystemExit(
            f"{what} {amount} cannot be divided over {world.ddp_world_size} ranks x {accumulate} accumulation steps: "
            f"it must be a multiple of {parts}."
        )
    return amount // parts
