"""A training loop that falls ill at step AT: `program.py FAULT RANK STEP_S`. RANK is the sick one, FAULT one of faults.py.

Each step reads, computes, sums over all ranks by gloo, and every other one saves. `fault-began` in the run folder says when it
fell ill.
"""

import ctypes
import os
import pathlib
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from kit_rank import progress
from torch.utils.data import DataLoader, Dataset

AT = 6
fault, sick, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
run, rank = pathlib.Path(os.environ["KIT_RUN_DIR"]), int(os.environ["RANK"])


def began() -> None:
    path = run / "fault-began.new"
    path.write_text(str(time.time()))
    path.rename(run / "fault-began")


def meet(asks: str, answer: str) -> None:
    """Ask the one who runs the test, and wait for its answer."""
    (run / asks).touch()
    while not (run / answer).exists():
        time.sleep(0.05)


# Open from the start: the reads alone are what does not come back.
file = os.open("/data/train.bin", os.O_RDONLY) if fault in {"fuse", "disk"} else -1


class Stuck(Dataset):  # type: ignore[misc]
    """Whose storage does not answer."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(3600)
        return torch.zeros(1)


def hold_the_interpreter() -> None:
    """A mutex that is taken twice, by native code that does not release the GIL."""
    mutex = ctypes.create_string_buffer(64)
    library = ctypes.PyDLL(None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def read_file(step: int) -> None:
    os.pread(file, 64 << 10, step << 19)


def turn_the_clock() -> None:
    """Of all ranks of the sick one's node, five minutes ahead."""
    right = time.time
    time.time = lambda: right() + 300


def compute(step: int) -> None:
    time.sleep(step_s)
    if rank != sick or step < AT:
        return
    if fault == "slow":
        if step == AT:
            began()
        time.sleep(9 * step_s)
    if step > AT:
        return
    if fault in {"sleep", "loop", "gil", "stop"}:
        began()
    if fault == "sleep":
        time.sleep(3600)
    if fault == "loop":
        while True:
            pass
    if fault == "gil":
        hold_the_interpreter()
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)


def load(step: int) -> None:
    if rank != sick:
        return
    if fault in {"fuse", "disk"}:
        if step == AT:
            meet("fault-ready", "fault-go")
            began()
        read_file(step)
    if fault == "loader" and step == AT:
        began()
        next(iter(DataLoader(Stuck(), num_workers=1)))


def communicate(step: int) -> None:
    tensor = torch.ones(1000)
    if rank == sick and step == AT and fault in {"shape", "order"}:
        began()
        if fault == "shape":
            tensor = torch.ones(10)
        else:
            dist.broadcast(tensor, 0)
    dist.all_reduce(tensor)


def save(step: int) -> None:
    if rank == 0:
        (run / "checkpoints" / "sick.bin").write_bytes(b"x" * 1000)
    if rank == sick and step == AT and fault == "save":
        lock = threading.Lock()
        began()
        with lock:
            lock.acquire()


dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1000))
progress.step(0)
turned = fault != "clock" or rank // 2 != sick // 2
for step in range(1, 400):
    if not turned and (run / "clock-wrong").exists():
        turn_the_clock()
        turned = True
    with progress.phase("data"):
        load(step)
    compute(step)
    with progress.phase("communicate"):
        communicate(step)
    if step % 2 == 0:
        with progress.phase("save"):
            save(step)
            dist.barrier()
    progress.step(step)
    if rank == 0 and step == AT:
        (run / "fault-may-begin").touch()
    if (run / "finish").exists():
        break
dist.destroy_process_group()
