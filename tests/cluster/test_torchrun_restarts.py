"""torchrun's own restarts of the ranks, `[torchrun] max_restarts`: by the real torchrun, on two nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.lab import Lab, Run

pytestmark = pytest.mark.cluster

JOB = """\
script = "program.py"
shape = "torchrun"
[preflight]
free_disk_gb = 0
[torchrun]
max_restarts = {restarts}
"""
# Rank 3 kills itself in each of its first KILLS starts. The others wait; torchrun ends them.
PROGRAM = """\
import os, pathlib, sys, time
run, rank = pathlib.Path(os.environ["KIT_RUN_DIR"]), os.environ["RANK"]
if sys.argv[2:] == ["gloo"]:
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
number = len(list(run.glob(f"up-{rank}-*")))
(run / f"up-{rank}-{number}").write_text(os.environ["NODE_RANK"] + os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"])
if rank == "3" and number < int(sys.argv[1]):
    while sum(1 for _ in run.glob(f"up-?-{number}")) < 4:
        time.sleep(0.02)
    os.kill(os.getpid(), 9)
while not (run / f"up-3-{sys.argv[1]}").exists() or (sys.argv[2:] == ["wait"] and not (run / "finish").exists()):
    time.sleep(0.05)
if sys.argv[2:] == ["gloo"]:
    dist.destroy_process_group()
"""
RuntimeOf = Callable[[str], list[str]]


def ran(lab: Lab, options: list[str], *args: str, restarts: int) -> Run:
    lab.write(f"args = {list(args)}\n" + JOB.format(restarts=restarts), PROGRAM)
    return lab.run(*options)


def why(lab: Lab, run: Path) -> str:
    return lab.kit("why", run.name).stdout


def test_torchrun_restarts_the_ranks_of_both_nodes(lab: Lab, runtime_of: RuntimeOf) -> None:
    """The kit once ended the step ten seconds after the first end, and gave the run that end's code."""
    run = ran(lab, runtime_of("bubblewrap"), "1", restarts=4)
    assert run.done.returncode == 0, run.log("batch") + run.log("rank-3")
    ups = {path.name: path.read_text() for path in run.folder.glob("up-*")}
    assert ups == {f"up-{rank}-{start}": f"{rank // 2}1" for rank in range(4) for start in (0, 1)}
    ended = f"rank 3 on node {lab.cluster.nodes[1].name} had ended with exit code 137"
    assert f"restarts by torchrun: 1; first, {ended}" in run.log("batch")
    said = why(lab, run.folder)
    assert "it ended well; torchrun restarted the ranks once, first because rank 3 on " in said
    assert "ended with exit code 137" in said
    assert "\nended\n" not in run.log("rank-0"), (
        "the line for the watch of slurmstepd, which torchrun's ranks do not reach"
    )
    assert lab.settled(run.folder) == []


@pytest.mark.slow
def test_ranks_that_meet_by_gloo_meet_again_after_each_restart(lab: Lab, runtime_of: RuntimeOf) -> None:
    """In a store that outlived the restart, they read addresses of killed ranks."""
    run = ran(lab, runtime_of("bubblewrap"), "4", "gloo", restarts=4)
    assert run.done.returncode == 0, run.log("batch") + run.log("rank-3")
    assert "restarts by torchrun: 4;" in run.log("batch")


@pytest.mark.slow
def test_no_restart_of_torchruns_is_left(lab: Lab, runtime_of: RuntimeOf) -> None:
    run = ran(lab, runtime_of("bubblewrap"), "9", restarts=1)
    assert run.done.returncode == 137, run.log("batch")
    assert "rank 3 on node" in run.log("batch")
    said = why(lab, run.folder)
    assert "torchrun restarted the ranks once, first because rank 3 on " in said
    assert "the last: rank 3 on " in said
    assert "killed (signal 9)" in said
    assert lab.settled(run.folder) == []


@pytest.mark.slow
def test_a_run_that_torchrun_has_restarted_is_cancelled(lab: Lab, runtime_of: RuntimeOf) -> None:
    lab.write('args = ["1", "wait"]\n' + JOB.format(restarts=4), PROGRAM)
    run = lab.submit(*runtime_of("bubblewrap"))
    lab.wait(lambda: len(list(run.glob("up-?-1"))) == 4, run)
    lab.kit("cancel", run.name)
    assert lab.wait_end(run)["JobState"] == "CANCELLED"
    assert lab.status(run)["exit_code"] == 143
    assert lab.settled(run) == []
