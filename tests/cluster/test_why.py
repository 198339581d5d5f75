"""`kit why` on jobs of a real Slurm, through the command line. The rules one by one: tests/unit/test_health.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import Lab

pytestmark = pytest.mark.cluster

ONE = 'script = "program.py"\nshape = "srun"\npython = "/usr/bin/python3"\n[preflight]\nfree_disk_gb = 0\n'


def test_why_status_and_wait_agree(lab: Lab) -> None:
    """Rank 1's own exception is named, though every rank ends."""
    program = "import os\n\ndef work():\n    return {}['lr']\n\nif os.environ['RANK'] == '1':\n    work()\n"
    lab.write(ONE, program)
    run = lab.run("--no-container")
    said = json.loads(lab.kit("why", run.folder.name, "--json").stdout)
    assert (said["rule"], said["verdict"], said["state"]) == ("exception", "fix the code", "FAILED")
    assert said["line"].startswith("rank 1 on ")
    assert said["line"].endswith("failed first: KeyError: 'lr' at program.py:4 in work")
    assert said["evidence"][0]["file"] == "logs/rank-1.log"
    assert run.log("rank-1").split("\n")[said["evidence"][0]["line"] - 1] == "KeyError: 'lr'"
    assert lab.status(run.folder)["why"] == said["line"]
    assert f"{said['line']}\n  try: kit why {run.folder.name}" in run.done.stderr
    shown = lab.kit("why", run.folder.name).stdout
    assert shown.splitlines()[0] == f"{run.folder.name}: {said['line']}"
    assert f"next      kit logs {run.folder.name} --rank 1 --tail 50" in shown


def test_a_job_that_waits(lab: Lab) -> None:
    lab.write(f'{ONE}[slurm]\nextra = ["--begin=now+1hour"]\n', "pass\n")
    run = lab.submit("--no-container")
    try:
        lab.wait(lambda: lab.status(run)["reason"] == "BeginTime", run)
        assert json.loads(lab.kit("why", run.name, "--json").stdout)["rule"] == "pending-begin"
        assert lab.status(run)["why"] == "", "it has not ended"
    finally:
        lab.kit("cancel", run.name)
    said = json.loads(lab.kit("why", run.name, "--json").stdout)
    assert said["rule"] == "cancelled"
    assert "before it began" in said["line"]


STEPS = """\
import os, time
from kit_rank import progress
rank = int(os.environ["RANK"])
for step in range(1, 6):
    time.sleep(0.2)
    progress.step(step)
while not os.path.exists(os.environ["KIT_RUN_DIR"] + "/finish"):
    time.sleep(0.1)
with progress.phase("save"):
    time.sleep(1)
"""


def test_what_ranks_report_is_seen_from_outside(lab: Lab, runtime: str) -> None:
    """In every container runtime: /dev/shm is the node's, one file a node, and nothing is left there."""
    python = 'python = "/usr/bin/python3"\n' if runtime == "bare" else ""
    lab.write(f'script = "program.py"\nshape = "srun"\n{python}[preflight]\nfree_disk_gb = 0\n', STEPS)
    run = lab.submit(*(["--no-container"] if runtime == "bare" else ["--set", f"container.runtime={runtime}"]))
    try:
        lab.wait(lambda: len(_top(lab, run)) == 4 and min(one["step"] for one in _top(lab, run)) == 5, run, seconds=90)
        ranks = _top(lab, run)
        assert [one["rank"] for one in ranks] == [0, 1, 2, 3]
        assert {one["phase"] for one in ranks} == {"compute"}
        assert len({one["node"] for one in ranks}) == 2
        assert len(list((run / "monitor").glob("*.progress"))) == 2
        assert lab.kit("top", run.name, "--once").stdout.splitlines()[0].split()[:4] == [
            "rank",
            "node",
            "step",
            "phase",
        ]
    finally:
        (run / "finish").touch()
    lab.wait_end(run)
    assert lab.settled(run) == []


def _top(lab: Lab, run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(lab.kit("top", run.name, "--json").stdout)["ranks"]
    return found


# Four ranks on two nodes; `communicate` is a wait for the slowest, as a collective is. FAULT is what rank 3 does at step 6.
MEETS = """\
import os, signal, sys, time
from kit_rank import progress
rank, run = int(os.environ["RANK"]), os.environ["KIT_RUN_DIR"]

def fault():
FAULT

def meet(step):
    open(f"{run}/met-{step}-{rank}", "w").close()
    while not all(os.path.exists(f"{run}/met-{step}-{one}") for one in range(4)):
        time.sleep(0.02)

for step in range(1, 40):
    if (rank, step) == (3, 6) and os.environ["KIT_RESTART_COUNT"] == "0":
        fault()
    time.sleep(0.1)
    with progress.phase("communicate"):
        meet(step)
    progress.step(step)
print("all steps are done", flush=True)
"""
WATCHED = f"{ONE}[watch]\npatience = PATIENCE\n"


def stuck(lab: Lab, fault: str, *, job: str = WATCHED, patience: int = 600, options: tuple[str, ...] = ()) -> Path:
    program = MEETS.replace("FAULT", "".join(f"    {line}\n" for line in fault.splitlines()))
    lab.write(job.replace("PATIENCE", str(patience)), program)
    return lab.submit("--no-container", *options)


def found(lab: Lab, run: Path) -> dict[str, Any]:
    """`kit why`, once every rank has given its evidence."""
    lab.wait(lambda: len(list(run.glob("state/stall-1/rank-*.txt"))) == 4, run, seconds=120)
    said: dict[str, Any] = json.loads(lab.kit("why", run.name, "--json").stdout)
    return said


FAULTS = {
    "a loop": (
        "while True: pass",
        "stall-loop",
        r"rank 3 \(\S+-2\) runs in fault \(program\.py:6\) and takes \d+ % .*3 ranks wait",
    ),
    "SIGSTOP": (
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "stall-stopped",
        r"rank 3 \(\S+-2\) is stopped.*3 ranks wait for it",
    ),
    "data": (
        "os.mkfifo(run + '/data.bin')\nwith progress.phase('data'):\n    open(run + '/data.bin').read()",
        "stall-data",
        r"rank 3 \(\S+-2\) is in its data loader, at fault \(program\.py:8\); 3 ranks wait",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_culprit_of_a_stall_is_named(lab: Lab, name: str) -> None:
    fault, rule, says = FAULTS[name]
    run = stuck(lab, fault)
    try:
        said = found(lab, run)
        assert said["rule"] == rule, said
        assert re.search(says, said["line"]), said["line"]
        for cited in said["evidence"]:
            lines = (run / cited["file"]).read_text(encoding="utf-8").split("\n")
            assert cited["text"] == lines[cited["line"] - 1].strip()
        assert len(list(run.glob("state/stall-1/node-*.txt"))) == 2
        now = json.loads(lab.kit("stacks", run.name, "--rank", "0", "--json").stdout)["stacks"]
        assert list(now) == ["rank-0.txt"]
        assert re.search(r"in meet\n|    meet \(", now["rank-0.txt"]), "faulthandler's line, or py-spy's"
        assert len(json.loads(lab.kit("stacks", run.name, "--json").stdout)["stacks"]) == 6
        assert not list(run.glob("state/stacks-*")), "what kit stacks gathered is gone"
    finally:
        lab.slurm("scancel", str(lab.job(run)["JobId"]))
    lab.wait_end(run)
    assert lab.settled(run) == []


def test_a_stall_ends_with_a_code_of_its_own(lab: Lab) -> None:
    run = stuck(lab, "time.sleep(3600)", patience=5)
    lab.wait_end(run)
    said = json.loads(lab.kit("why", run.name, "--json").stdout)
    assert lab.status(run)["exit_code"] == 76
    assert said["rule"] == "stall-elsewhere"
    assert said["line"].startswith("its ranks stood still, and it was ended: rank 3 (")
    assert lab.settled(run) == []


def test_a_stall_is_restarted_and_the_job_ends_well(lab: Lab) -> None:
    retry = '[watch]\non_stall = "restart"\npatience = 2\n[retry]\nin_allocation = 1\n'
    run = stuck(lab, "time.sleep(3600)", job=ONE + retry)
    lab.wait_end(run)
    log = (run / "logs" / "batch.log").read_text(encoding="utf-8")
    assert lab.status(run)["exit_code"] == 0, log
    assert "restart 1 of 1 in this allocation" in log
    assert "all steps are done" in (run / "logs" / "rank-3.log").read_text(encoding="utf-8")


ORDINARY = """\
import os, time
from kit_rank import progress
time.sleep(4)  # imports, and a first step that compiles
for step in range(1, 40):
    with progress.phase("communicate"):
        time.sleep(0.2)
    if step % 30 == 0:
        with progress.phase("evaluate"):
            time.sleep(18)
        with progress.phase("save"):
            time.sleep(16)
    progress.step(step)
if os.environ["RANK"] != "0":
    raise SystemExit(0)
time.sleep(20)  # rank 0 writes for longer than the others
"""


def test_an_ordinary_run_gives_no_alarm(lab: Lab) -> None:
    """Saves, evaluations and a last rank that are all longer than the limit of a step."""
    lab.write(ONE, ORDINARY)
    run = lab.run("--no-container")
    assert run.done.returncode == 0, run.done.stderr
    assert not list(run.folder.glob("state/stall-*"))
    assert '"stall"' not in (run.folder / "state" / "events.jsonl").read_text(encoding="utf-8")


# Quick saves, then one that is longer than three of them and ten seconds: rank 0 writes, and the others wait for it in theirs.
SAVES = """\
import os, time
from kit_rank import progress
run, rank = os.environ["KIT_RUN_DIR"], int(os.environ["RANK"])
progress.step(0)
for step in range(1, 31):
    time.sleep(0.1)
    with progress.phase("save"):
        if step == 30 and rank == 0:
            with open(run + "/checkpoints/big.bin", "wb") as file:
                for _ in range(40):
                    file.write(b"x" * (1 << 20))
                    file.flush()
                    time.sleep(0.5)
            open(run + "/saved", "w").close()
        time.sleep(0.05)
        while step == 30 and not os.path.exists(run + "/saved"):
            time.sleep(0.1)
    progress.step(step)
"""


def test_a_save_that_writes_is_no_stall(lab: Lab) -> None:
    """What is saved at last, or without a background thread, takes longer than the saves before."""
    lab.write(ONE, SAVES)
    run = lab.run("--no-container")
    assert run.done.returncode == 0, run.done.stderr
    assert '"stall"' not in (run.folder / "state" / "events.jsonl").read_text(encoding="utf-8")


GLOO = """\
import os, time
import torch, torch.distributed as dist
from kit_rank import progress
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(1, 60):
    time.sleep(0.1)
    ones = torch.ones(1000)
    if (rank, step) == (3, 6):
        FAULT
    dist.all_reduce(ones)
    progress.step(step)
"""
OF_TORCH = {
    "sleep": (
        "time.sleep(3600)",
        "stall-elsewhere",
        r"rank 3 .*-2\) is in <module> \(program.py:10\); 3 ranks wait for it in all_reduce",
    ),
    "order": (
        "dist.broadcast(ones, 0)",
        "stall-order",
        r"rank 3 .*-2\) is in broadcast.*, and 3 ranks are in all_reduce",
    ),
}


@pytest.mark.parametrize(("name", "shape", "within"), [("sleep", "torchrun", "pyxis"), ("order", "srun", "bubblewrap")])
def test_the_culprit_among_ranks_of_torch(
    lab: Lab, runtime_of: Callable[[str], list[str]], name: str, shape: str, within: str
) -> None:
    """The stacks come out of the container, and out of a PID namespace of its own."""
    fault, rule, says = OF_TORCH[name]
    job = f'script = "program.py"\nshape = "{shape}"\n[preflight]\nfree_disk_gb = 0\n'
    lab.write(job, GLOO.replace("FAULT", fault))
    run = lab.submit(*runtime_of(within))
    try:
        said = found(lab, run)
        assert said["rule"] == rule, said
        assert re.search(says, said["line"]), said["line"]
    finally:
        lab.slurm("scancel", str(lab.job(run)["JobId"]))
    lab.wait_end(run)
    assert lab.settled(run) == []
