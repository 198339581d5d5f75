"""`[checkpoint] memory_every`: a killed rank and a lost node cost the steps since the last save in memory, and read no file."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import Lab, Process, job_id
from tests.cluster.test_lost_nodes import dead

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

EVERY = 3
# Longest wait for a training on a busy machine.
LONG_S = 600
JOB = f"""script = "/kit/run/code/train_gpt.py"
shape = "srun"
image = "train-cpu"
seed = 7
args = ["--layers", "1", "--dim", "32", "--context", "32", "--steps", "120", "--log-every", "1", "--device", "cpu"]
[resources]
nodes = 2
time = "00:30:00"
gpus_per_node = 2
[env]
OMP_NUM_THREADS = "1"
[retry]
in_allocation = 3
spares = 1
[checkpoint]
memory_every = {EVERY}
"""


@pytest.fixture(scope="module")
def whole(spare_lab: Lab) -> dict[int, float]:
    """The losses of a run that nothing happens to. It makes no checkpoint in memory."""
    spare_lab.write(JOB.replace(f"memory_every = {EVERY}", ""))
    run = spare_lab.submit()
    spare_lab.wait_end(run, seconds=LONG_S)
    assert spare_lab.status(run)["exit_code"] == 0, log(run)
    return losses(run)


def test_a_killed_rank_and_a_lost_node_cost_the_steps_since_the_last_save(
    spare_lab: Lab, whole: dict[int, float]
) -> None:
    """Same losses, to the bit. The spare gets the parts of the lost node from the others, and nothing is left on any node."""
    spare_lab.write(JOB)
    run = spare_lab.submit()
    spare_lab.wait(lambda: furthest(run) >= 8, run)
    reached = [furthest(run)]
    os.kill(rank(spare_lab, run, 1).pid, signal.SIGKILL)
    spare_lab.wait(lambda: resumed(run) and furthest(run) >= reached[0] + 8, run)
    lost = nodes(run)[1]
    with dead(spare_lab, run, lost):
        reached.append(furthest(run))
        assert not [*(run / "checkpoints").glob("step-*")], "there was no file to continue from"
        spare_lab.wait_end(run, seconds=LONG_S)
        assert spare_lab.status(run)["exit_code"] == 0, log(run)
    events = resumed(run)
    assert [event["source"] for event in events] == ["memory", "neighbour"], log(run)
    for event, at in zip(events, reached, strict=True):
        # The ranks may have made steps since the look at them, and before they were killed.
        assert int(event["step"]) >= at - EVERY
    made = records(run, "step")
    for start in (1, 2):
        before = [record["step"] for record in made if record["restart"] < start]
        first = min(record["step"] for record in made if record["restart"] == start)
        assert max(before) - (first - 1) <= EVERY
    assert losses(run) == whole
    assert "continued from memory" in spare_lab.kit("why", run.name).stdout
    assert spare_lab.settled(run) == []


def test_the_folder_goes_with_its_keeper(spare_lab: Lab) -> None:
    """Killed by -9 on all nodes, the spare among them. The training continues, and says that it has no checkpoints in memory."""
    spare_lab.write(JOB.replace('"--steps", "120"', '"--steps", "100000"'))
    run = spare_lab.submit()
    spare_lab.wait(lambda: furthest(run) >= 4, run)
    shells = {one.pid: one for one in spare_lab.processes(run) if re.search(r"bash \S+/bin/memory\.sh$", one.line)}
    keepers = [one.pid for one in shells.values() if one.parent not in shells]
    assert len(keepers) == 3, shells
    for pid in keepers:
        os.kill(pid, signal.SIGKILL)
    folders = ("find", "/dev/shm", "-name", "kit-memory-*")
    spare_lab.wait(lambda: not any(spare_lab.inside(one.name, *folders) for one in spare_lab.cluster.nodes), run)
    reached = furthest(run)
    spare_lab.wait(lambda: furthest(run) > reached + 2 * EVERY, run)
    assert (run / "logs" / "rank-0.log").read_text().count("a fault may cost more than") == 1, log(run)
    spare_lab.kit("cancel", run.name)
    spare_lab.wait_end(run)
    assert spare_lab.settled(run) == []


def rank(lab: Lab, run: Path, number: int) -> Process:
    """The program of a rank."""
    mine = (b"RANK=%d\0" % number, b"SLURM_JOB_ID=%d\0" % (job_id(run) or 0))
    found = [
        one
        for one in lab.processes(run)
        if all(b"\0" + word in b"\0" + one.environ for word in mine)
        and "train_gpt.py" in one.line
        and "python" in one.argv[0]
    ]
    assert found, [one.line for one in lab.processes(run)]
    return found[-1]


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def furthest(run: Path) -> int:
    return max((record["step"] for record in records(run, "step")), default=0)


def losses(run: Path) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in records(run, "step")}


def resumed(run: Path) -> list[dict[str, Any]]:
    return [event for event in events_of(run) if event["event"] == "resumed"]


def nodes(run: Path) -> list[str]:
    """The nodes of the last attempt."""
    attempts = [event for event in events_of(run) if event["event"] == "attempt"]
    return str(attempts[-1]["nodes"]).split(",")


def events_of(run: Path) -> list[dict[str, Any]]:
    path = run / "state" / "events.jsonl"
    return [*map(json.loads, path.read_text().splitlines())] if path.exists() else []


def log(run: Path) -> str:
    """All that was said, for a failure."""
    return "\n".join(
        f"== {path.name}\n{path.read_text(errors='replace')}" for path in sorted((run / "logs").glob("*.log"))
    )
