"""`[retry] warm`: ranks are forked from a process of their node, at each start; signals, ends and leftovers are as without it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.lab import Lab

pytestmark = pytest.mark.cluster

# The module that is imported warm; a program of the standard library's alone does not have it.
MODULE = "xml.dom.minidom"
PROGRAM = f"""
import sys
warm = "{MODULE}" in sys.modules
import json, os, pathlib, signal, subprocess, time
run, rank, start = pathlib.Path(os.environ["KIT_RUN_DIR"]), os.environ["RANK"], os.environ["KIT_RESTART_COUNT"]
def save(number, _frame):
    (run / f"saved-{{rank}}-{{start}}").write_text(str(int(number)))
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, save)
# A rank that is killed leaves a process behind.
left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
seen = run / f"up-{{rank}}-{{start}}.new"
seen.write_text(json.dumps([warm, sys.argv, os.getcwd()]))
seen.rename(run / f"up-{{rank}}-{{start}}")
while start == "0" and len(list(run.glob("up-?-0"))) < 4:
    time.sleep(0.05)
if start == "0" and rank == "1":
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    time.sleep(0.1)
"""
JOB = f"""script = "program.py"
python = "/usr/bin/python3"
args = ["a b"]
[preflight]
enabled = false
[retry]
in_allocation = 1
warm = ["{MODULE}"]
"""


@pytest.mark.parametrize("shape", ["srun", "torchrun"])
@pytest.mark.parametrize(
    "runtime",
    [
        "bare",
        "bubblewrap",
        *(pytest.param(name, marks=pytest.mark.faults) for name in ("pyxis", "enroot")),
    ],
    indirect=True,
)
def test_ranks_are_forked_at_each_start_and_are_told_to_end(
    lab: Lab, runtime: str, runtime_of: Callable[[str], list[str]], shape: str
) -> None:
    """A rank is killed, all start again in their step, and `kit cancel` reaches them: once, by its name, and nothing is left."""
    lab.write(JOB, PROGRAM)
    run = lab.submit(*runtime_of(runtime), "--set", f"shape={shape}")
    lab.wait(lambda: len(list(run.glob("up-?-1"))) == 4, run)
    for start in (0, 1):
        for rank in range(4):
            warm, argv, _ = json.loads((run / f"up-{rank}-{start}").read_text())
            assert (warm, argv[1:]) == (True, ["a b"]), log(run)
    steps = lab.slurm("squeue", "--steps", "--noheader", "--format=%j %i").split()
    assert "kit-warm" in steps, steps
    assert all(f"rank {rank} is forked again, restart 1" in log(run) for rank in range(4)), log(run)
    assert (run / "state/failures-0").exists(), "the first start's record of failures stays"
    lab.kit("cancel", run.name)
    lab.wait_end(run)
    assert sorted(path.name for path in run.glob("saved-*-1")) == [f"saved-{rank}-1" for rank in range(4)], log(run)
    assert {path.read_text() for path in run.glob("saved-*-1")} == {"15"}
    assert "the ranks ended after TERM, the first of them with exit code 143" in log(run)
    assert "imports by itself" not in log(run)
    assert lab.settled(run) == []


def log(run: Path) -> str:
    """All that was said, for a failure."""
    return "\n".join(
        f"== {path.name}\n{path.read_text(errors='replace')}" for path in sorted((run / "logs").glob("*.log"))
    )
