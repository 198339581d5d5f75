"""An adaptive search on a real Slurm: every point asks on its node, a bad one is stopped, a killed one continues."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from kit.sweeps.search import search_trials
from tests.cluster.lab import Lab

pytest.importorskip("optuna")
pytestmark = pytest.mark.cluster

# The loss is worse the further lr is from 0.01, from the first step on; the first point waits until it is killed.
PROGRAM = """\
import json, math, os, sys, time
run, lr = os.environ["KIT_RUN_DIR"], float(sys.argv[sys.argv.index("--lr") + 1])
open(f"{run}/started-{os.environ['KIT_RESTART_COUNT']}", "w").close()
if run.endswith(".0") and os.environ["KIT_RESTART_COUNT"] == "0":
    time.sleep(120)
loss = abs(math.log10(lr) + 2)
steps = 40 if loss > 1.5 and os.environ["STOPPABLE"] == "1" else 4
for step in range(1, steps + 1):
    with open(f"{run}/metrics.jsonl", "a") as file:
        file.write(json.dumps({"kind": "step", "step": step, "loss": loss + 1 / step}) + "\\n")
    time.sleep(0.5 if steps > 4 else 0.05)
with open(f"{run}/metrics.jsonl", "a") as file:
    file.write(json.dumps({"kind": "final", "step": steps, "loss": loss}) + "\\n")
"""
JOB = """\
script = "program.py"
shape = "srun"
python = "/usr/bin/python3"
[resources]
nodes = 1
ranks_per_node = 1
gpus_per_node = 1
[preflight]
free_disk_gb = 0
[retry]
in_allocation = 1
[env]
STOPPABLE = "1"
[sweep]
metric = "loss"
parallel = 2
[sweep.search]
count = 8
startup = 4
stop = { first = 3, factor = 2 }
[sweep.search.keys]
args.--lr = { log_uniform = [1e-7, 1.0] }
"""


def test_a_search_on_the_cluster(lab: Lab) -> None:
    """Values differ, are what the program got, and are what `kit results` shows; the point that was killed keeps its own."""
    lab.write(JOB, PROGRAM)
    sweep = Path(lab.kit("sweep", "--cluster", lab.cluster.name, "--no-container").stdout.splitlines()[-1])
    first = sweep / "points" / f"{sweep.name}.0"
    lab.wait((first / "started-0").exists, first)
    given = search_trials.suggestion(first)
    (rank,) = [
        one
        for one in lab.processes(first)
        if one.argv[-1:] and "program.py" in one.line and one.argv[0].endswith("python3")
    ]
    os.kill(rank.pid, signal.SIGKILL)
    lab.wait(lambda: not _active(lab, sweep), first, seconds=200)
    made = json.loads(lab.kit("results", sweep.name, "--json").stdout)
    points = {one["point"]: one for one in made["points"]}
    assert search_trials.suggestion(first) == given
    assert given is not None
    assert points[0]["lr"] == given["args.--lr"]
    assert len({one["lr"] for one in points.values()}) == 8
    for number, one in points.items():
        folder = sweep / "points" / f"{sweep.name}.{number}"
        assert f"    --lr\n    {one['lr']}\n" in (folder / "program.sh").read_text()
        assert search_trials.suggestion(folder) is not None, (folder / "logs" / "batch.log").read_text()
    states = {one["state"] for one in points.values()}
    assert states <= {"COMPLETED", "STOPPED"}, states
    best = lab.kit("results", sweep.name).stdout.splitlines()[-1]
    assert best.startswith("best: point ")


def _active(lab: Lab, sweep: Path) -> bool:
    found: dict[str, Any] = json.loads(lab.kit("results", sweep.name, "--json").stdout)
    time.sleep(1)
    return any(one["state"] not in {"COMPLETED", "STOPPED", "FAILED", "CANCELLED"} for one in found["points"])
