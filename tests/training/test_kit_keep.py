"""kit_keep: survivors of a dead rank call their training function again, and compute to the bit what they would have computed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import NODE, REPO
from tests.training.conftest import curve, free_port, records
from tests.warm import Warm, came

pytestmark = pytest.mark.smoke

TIMEOUT_S, RANKS = 300, 3
MODULES = "torch,torch.distributed,torch.nn.parallel,torch._dynamo"
# The last rank dies before step 3 of the first start, inside a step or between two of them.
PROGRAM = """
import os, pathlib, signal, sys
import torch
import torch.distributed as dist
from kit_keep import run
saved, calls = pathlib.Path("saved.pt"), []
def train():
    calls.append(os.environ["MASTER_PORT"])
    dist.init_process_group("gloo")
    steps()
    # The model is gone by now, as the docstring of kit_keep has it.
    dist.destroy_process_group()
    return 5
def steps():
    rank = dist.get_rank()
    torch.manual_seed(1 + rank)
    net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    # As in train_gpt.py: the order of sums depends on DDP's buckets, which it orders after its first pass.
    model(torch.randn(16, 4)).square().mean().backward()
    optimizer.zero_grad()
    begin = 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
    for step in range(begin, 6):
        dies = sys.argv[1] == "die" and os.environ["KIT_RESTART_COUNT"] == "0" and rank == dist.get_world_size() - 1
        torch.manual_seed(100 * step + rank)
        loss = model(torch.randn(16, 4)).square().mean()
        if step == 3 and dies:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with open(f"losses-{rank}", "a") as file:
            file.write(f"{step} {loss.item().hex()}\\n")
        if step == 1:
            if rank == 0:
                torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 2}, "saved.pt")
            dist.barrier()
code = run(train)
print(os.getpid(), len(calls), len(set(calls)), flush=True)
sys.exit(code)
"""


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Warm]:
    made = Warm(tmp_path)
    (tmp_path / "state/failures-0/train-0").mkdir(parents=True)
    made.env |= {"OMP_NUM_THREADS": "1", "KIT_RUN_DIR": str(tmp_path), "KIT_SEED": "7"}
    made.env |= {"KIT_RESTART_COUNT": "0", "KIT_ATTEMPT": "0", "KIT_FAILURES": "failures-0/train-0"}
    made.env["PYTHONPATH"] = f"{REPO / 'launchers'}:{NODE}"
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()


def start(warm: Warm, *program: str, forked: bool) -> list[subprocess.Popen[str]]:
    """Three ranks, and what they say in files of theirs."""
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS), "NODE_RANK": "0"}
    env |= {"KIT_KEEP": "1"} if forked else {}
    return [
        warm.start(*program, warm=forked, out=f"out-{n}", **env, RANK=str(n), LOCAL_RANK=str(n)) for n in range(RANKS)
    ]


def restart(warm: Warm, dead: int) -> list[str]:
    """What the batch script does. Returns the ranks whose processes were not forked again."""
    words = warm.report()
    while words[0] != "ended":
        words = warm.report()
    assert words == ["ended", "0", str(dead), "killed"]
    warm.order("stop", "0", "killed")
    assert warm.report() == ["stopped", "0", str(RANKS)]
    changes = [
        f"KIT_MASTER_PORT={free_port()}",
        "KIT_RESTART_COUNT=1",
        "KIT_ATTEMPT=1",
        "KIT_FAILURES=failures-1/train-1",
    ]
    warm.order("again", "0", "KIT_MASTER_ADDR=127.0.0.1", *changes)
    started = [warm.report() for _ in range(RANKS)]
    assert sorted(started) == [["forked", "1", str(n)] for n in range(RANKS)]
    return started[0]


def losses(warm: Warm) -> list[dict[str, str]]:
    """step -> loss of each rank, the latest where a step was done twice."""
    found = [dict(map(str.split, (warm.folder / f"losses-{n}").read_text().splitlines())) for n in range(RANKS)]
    for path in warm.folder.glob("losses-*"):
        path.unlink()
    return found


def test_survivors_live_on_and_losses_are_the_same_to_the_bit(warm: Warm) -> None:
    warm.write(PROGRAM)
    codes = [rank.wait(TIMEOUT_S) for rank in start(warm, "p.py", "live", forked=False)]
    assert codes == [5] * RANKS, (warm.folder / "err").read_text()
    plain = losses(warm)
    assert [len(one) for one in plain] == [6] * RANKS
    (warm.folder / "saved.pt").unlink()

    warm.serve(MODULES, orders=True)
    ranks = start(warm, "p.py", "die", forked=True)
    restart(warm, RANKS - 1)
    # Their exit code is not 0, so they wait for what the batch script decides.
    assert sorted(warm.report() for _ in range(RANKS)) == [["ended", "1", str(n), "failed"] for n in range(RANKS)]
    warm.order("release", "1")
    assert [rank.wait(TIMEOUT_S) for rank in ranks] == [5] * RANKS, (warm.folder / "err").read_text()
    assert losses(warm) == plain
    said = [(warm.folder / f"out-{n}").read_text().split() for n in range(RANKS)]
    assert [words[1:] for words in said] == [["2", "2"], ["2", "2"], ["1", "1"]], (
        "two processes live on; each start has its port"
    )


def test_train_gpt_goes_on_as_if_nothing_had_been(warm: Warm) -> None:
    program = str(REPO / "launchers/ddp/train_gpt.py")
    small = [
        "--device",
        "cpu",
        "--layers",
        "2",
        "--dim",
        "64",
        "--context",
        "64",
        "--batch-size",
        "12",
        "--steps",
        "120",
    ]
    small += ["--log-every", "1", "--checkpoint-every", "4", "--checkpoint-async"]
    codes = [
        rank.wait(TIMEOUT_S)
        for rank in start(warm, program, *small, "--run-dir", "plain", "--checkpoint-dir", "plain/c", forked=False)
    ]
    assert codes == [0] * RANKS, (warm.folder / "err").read_text()

    warm.serve(f"{MODULES},numpy", program, orders=True)
    ranks = start(warm, program, *small, "--run-dir", "kept", "--checkpoint-dir", "kept/c", forked=True)
    # A save in the background is there some time after its step.
    came((warm.folder / "kept/c/latest").exists)
    os.kill(victim(warm, 1), signal.SIGKILL)
    restart(warm, 1)
    assert [rank.wait(TIMEOUT_S) for rank in ranks] == [0] * RANKS, (warm.folder / "err").read_text()
    values = ("loss", "gradient_norm", "lr")
    assert curve(warm.folder / "kept", *values) == curve(warm.folder / "plain", *values)
    finals = [records(warm.folder / run, "final")[0]["test_loss"] for run in ("plain", "kept")]
    assert finals[0] == finals[1]
    assert [record["restart"] for record in records(warm.folder / "kept", "start")] == [0, 1]
    assert len(records(warm.folder / "kept", "resumed")) == 1, json.dumps(records(warm.folder / "kept"))[-2000:]


def victim(warm: Warm, rank: int) -> int:
    """The process of a forked rank."""
    assert warm.process is not None
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            words, status = path.read_bytes().split(b"\0"), (path.parent / "status").read_text()
        except OSError:
            continue
        if f"PPid:\t{warm.process.pid}\n" in status and f"RANK={rank}".encode() in words:
            return int(path.parent.name)
    raise AssertionError("no such rank")


@pytest.mark.parametrize("code", [1, 3])
def test_an_error_of_its_own_ends_a_rank(warm: Warm, code: int) -> None:
    """It is not taken for that of a dead peer, and outside such a job the function is only called."""
    text = "raise ValueError('x')" if code == 1 else "sys.exit(3)"
    warm.write(f"import sys\nfrom kit_keep import run\ndef f():\n    {text}\nrun(f)")
    assert warm.run("p.py", warm=False)[0] == code
    warm.serve("json", orders=True)
    rank = warm.start("p.py", KIT_KEEP="1", RANK="0")
    assert warm.report() == ["forked", "0", "0"]
    assert warm.report() == ["ended", "0", "0", "failed"]
    warm.order("release", "0")
    assert rank.wait(TIMEOUT_S) == code


def test_a_survivor_that_does_not_leave_is_killed_and_forked_again(warm: Warm) -> None:
    """It looks at no collective, and swallows whatever comes."""
    warm.write(
        "import os, pathlib, time\nfrom kit_keep import run\n"
        "rank, start = os.environ['RANK'], os.environ['KIT_RESTART_COUNT']\n"
        "def all_up():\n    return len(list(pathlib.Path().glob(f'up-?-{start}'))) == 3\n"
        "def f():\n    pathlib.Path(f'up-{rank}-{start}').touch()\n    while start == '0' or not all_up():\n"
        "        if rank == '2' and start == '0' and all_up():\n            os.kill(os.getpid(), 9)\n"
        "        time.sleep(0.05)\nrun(f)"
    )
    warm.serve("json", orders=True)
    ranks = start(warm, "p.py", forked=True)
    restart(warm, 2)
    assert [rank.wait(TIMEOUT_S) for rank in ranks] == [0] * RANKS
