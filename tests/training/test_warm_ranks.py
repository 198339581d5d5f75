"""Ranks that are forked from a process with torch: they compute to the bit what plain ones compute, also after a kill."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.conftest import free_port
from tests.warm import Warm

pytestmark = pytest.mark.smoke

TIMEOUT_S = 300
# Rank 1 dies before step 3 of the first start; the second one continues from the checkpoint of step 2.
PROGRAM = """
import os, pathlib, signal, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, saved = dist.get_rank(), pathlib.Path("saved.pt")
torch.manual_seed(1 + rank)
net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
begin = 0
if saved.exists():
    state = torch.load(saved, weights_only=True)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    begin = 2
for step in range(begin, 4):
    if step == 2 and sys.argv[1] == "die":
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
    torch.manual_seed(100 * step + rank)
    loss = model(torch.randn(16, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item().hex(), flush=True)
    if step == 1:
        if rank == 0:
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, "saved.pt")
        dist.barrier()
del model, loss
dist.destroy_process_group()
"""


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Warm]:
    made = Warm(tmp_path)
    made.env["OMP_NUM_THREADS"] = "1"
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()


def train(warm: Warm, how: str, *, forked: bool) -> tuple[list[int], str]:
    """Exit codes of two ranks, and the losses of rank 0."""
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [warm.start("p.py", how, warm=forked, out=f"out-{n}", **env, RANK=str(n)) for n in range(2)]
    codes = []
    for rank in reversed(ranks):
        codes.append(rank.wait(TIMEOUT_S))
        if codes[-1]:  # srun ends the others
            for other in ranks:
                other.kill()
    return codes, (warm.folder / "out-0").read_text()


def test_losses_are_the_same_to_the_bit(warm: Warm) -> None:
    warm.write(PROGRAM)
    codes, plain = train(warm, "live", forked=False)
    assert (codes, len(plain.splitlines())) == ([0, 0], 4), (warm.folder / "err").read_text()
    (warm.folder / "saved.pt").unlink()
    warm.serve("torch,torch.distributed,torch.nn.parallel,torch._dynamo")
    codes, before = train(warm, "die", forked=True)
    assert codes[0] == -signal.SIGKILL
    codes, after = train(warm, "live", forked=True)
    assert codes == [0, 0], (warm.folder / "err").read_text()
    assert before + after == plain
    assert "imports by itself" not in (warm.folder / "err").read_text(), warm.log
