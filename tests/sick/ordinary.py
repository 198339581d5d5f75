"""An ordinary training: `ordinary.py STEPS`, of the run's seed. Whatever is slow in it is slow by nature."""

import os
import pathlib
import random
import sys
import time

import torch
import torch.distributed as dist
from kit_rank import progress

steps, seed = int(sys.argv[1]), os.environ.get("KIT_SEED", "")
run, rank = pathlib.Path(os.environ["KIT_RUN_DIR"]), int(os.environ["RANK"])
draw = random.Random(f"{seed}-{rank}")
dist.init_process_group("gloo")
net = torch.nn.Linear(64, 64)
data = torch.randn(32, 64)


def save(seconds: float) -> None:
    """To a slow disk: two megabytes a second."""
    with (run / "checkpoints" / f"whole-{rank}.pt").open("wb") as file:
        for _ in range(int(2 * seconds)):
            file.write(os.urandom(1 << 20))
            file.flush()
            time.sleep(0.5)


progress.step(0)
for step in range(1, steps + 1):
    with progress.phase("data"):
        time.sleep(draw.expovariate(200))
    if step == 1:
        with progress.phase("compile"):
            time.sleep(25)
    if step == 2:
        time.sleep(12)  # the first steps warm caches up
    # Some steps are ten times as long: a longer sample, a garbage collection, a busy neighbour.
    time.sleep(draw.choice([0.02] * 50 + [0.2]))
    net(data).sum().backward()
    with progress.phase("communicate"):
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
    if step % 50 == 0:
        with progress.phase("save"):
            torch.save(net.state_dict(), run / "checkpoints" / f"{rank}.pt")
    if step % 300 == 0 and rank == 0:
        # Alone, while the others are at the next all-reduce.
        with progress.phase("save"):
            save(20)
    if step % 200 == 0:
        with progress.phase("evaluate"):
            time.sleep(4 + step / 50)
            dist.barrier()
    progress.step(step)
if rank == 0:
    with progress.phase("save"):
        save(20)
dist.destroy_process_group()
