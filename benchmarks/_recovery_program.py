"""The program of `python -m benchmarks recovery`: a small model with DDP over gloo, whose victim kills itself after some steps.

    program.py KILLS WAY [WORLD]     WAY: plain, keep (kit_keep), nvrx (nvidia-resiliency-ext's in-process wrapper,
where WORLD ranks train and the others are a reserve)

It does what a user's program does, and nothing more: it imports, meets the others, builds, loads, and trains. The victim and rank 0
note the times into files of the run folder: `kills`, and `marks` with a word and a time on each line.
"""

import os
import time
from pathlib import Path

FOLDER, BEGAN = Path(os.environ["KIT_RUN_DIR"]), time.time()


def note(name: str, text: str) -> None:
    """Append a line to a file of the run folder."""
    with (FOLDER / name).open("a") as file:
        file.write(f"{text} {time.time():.6f}\n")


def mark(word: str) -> None:
    """Note that rank 0 got this far."""
    if os.environ.get("RANK") == "0":
        note("marks", word)


mark("started")

import signal  # noqa: E402 - the time before the imports is measured
import sys  # noqa: E402
from datetime import timedelta  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

mark("imported")
# Seconds for which rank 0 outlives the others, and of a collective under the wrapper.
LEAVES_S, GLOO_S = 5.0, 10.0
STEPS, SAVED = 8, FOLDER / "checkpoints" / "saved.pt"
KILLS, WAY = int(sys.argv[1]), sys.argv[2]


def train(**group: Any) -> None:
    """Join the group, train, and leave it after the model is gone, for the reason in kit_keep. group: how to join."""
    mark("entered")
    dist.init_process_group("gloo", **group)
    mark("met")
    steps()
    dist.destroy_process_group()


def steps() -> None:
    """Load, and train; the last rank dies while there are kills left."""
    done = len((FOLDER / "kills").read_text().splitlines()) if (FOLDER / "kills").exists() else 0
    rank = dist.get_rank()
    torch.manual_seed(7)
    net = torch.nn.Sequential(*(layer for _ in range(4) for layer in (torch.nn.Linear(256, 256), torch.nn.GELU())))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    step = 0
    if SAVED.exists():
        state = torch.load(SAVED, weights_only=True)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    model = DistributedDataParallel(net)
    mark("loaded")
    for number in range(STEPS):
        batch = torch.from_numpy(np.random.default_rng(step + rank).standard_normal((8, 256), dtype=np.float32))
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        mark("step")
        if rank == 0 and number == STEPS // 2:
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, SAVED.with_suffix(".new"))
            SAVED.with_suffix(".new").rename(SAVED)
    dist.barrier()
    if done < KILLS:
        if rank == dist.get_world_size() - 1:
            note("kills", "kill")
            os.kill(os.getpid(), signal.SIGKILL)
        # As in training: the others wait in a collective for the dead rank.
        dist.barrier()


def in_process(world: int) -> None:
    """Train under the wrapper. Dead ranks are replaced by ranks in reserve, since nothing starts processes."""
    from nvidia_resiliency_ext import inprocess  # noqa: PLC0415 - installed for this way only

    # As its guide has it: one store outside of the wrapper, and a prefix for each call. The wrapper has the kit's port.
    address, port, first = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), os.environ["RANK"] == "0"
    store = dist.TCPStore(address, port + 1, is_master=first, wait_for_workers=False)

    def wrapped(call_wrapper: inprocess.CallWrapper | None = None) -> None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        assert call_wrapper is not None
        # Nothing wakes a rank that waits in gloo for one that is not dead; the wrapper would wait 90 seconds for it.
        limit = timedelta(seconds=GLOO_S)
        train(store=dist.PrefixStore(str(call_wrapper.iteration), store), rank=rank, world_size=size, timeout=limit)

    inprocess.Wrapper(
        store_kwargs={"host_name": address, "port": port},
        rank_assignment=inprocess.Compose(
            inprocess.rank_assignment.MaxActiveWorldSize(world), inprocess.rank_assignment.ShiftRanks()
        ),
    )(wrapped)()
    # Rank 0 has the store of the wrapper's last barrier. A rank that reads it after rank 0 is gone fails, and never ends.
    if first:
        (FOLDER / "ended").touch()
        time.sleep(LEAVES_S)


if WAY == "keep":
    from kit_keep import run

    run(train)
elif WAY == "nvrx":
    in_process(int(sys.argv[3]))
else:
    train()
