"""`kit time` on a real Slurm: losses that a program is made to have are found in the ledger, each in its account."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import Lab

pytestmark = pytest.mark.cluster

# Four ranks that meet at every step. Each writes how long it was held up by what, by its own clock.
PROGRAM = """\
import json, os, sys, time
from kit_rank import progress
rank, attempt, run = int(os.environ["RANK"]), int(os.environ["KIT_RESTART_COUNT"]), os.environ["KIT_RUN_DIR"]
truth = {}

def write():
    with open(f"{run}/truth-{attempt}-{rank}.json", "w") as file:
        json.dump(truth, file)

def took(what, seconds):
    began = time.monotonic()
    time.sleep(seconds)
    truth[what] = truth.get(what, 0) + time.monotonic() - began

def meet(step):
    began = time.monotonic()
    with progress.phase("communicate"):
        open(f"{run}/met-{attempt}-{step}-{rank}", "w").close()
        while not all(os.path.exists(f"{run}/met-{attempt}-{step}-{other}") for other in range(4)):
            time.sleep(0.005)
    truth["communicate"] = truth.get("communicate", 0) + time.monotonic() - began
    write()

def saved():
    with progress.phase("save"):
        took("save", 2)
    write()
    open(f"{run}/saved-{step}", "w").close()

step = max([int(name[6:]) for name in os.listdir(run) if name.startswith("saved-")], default=0)
took("start", 1)
progress.step(step)
while step < 30:
    with progress.phase("data"):
        took("data", 5 if (attempt, step, rank) == (0, 5, 0) else 0.01)
    took("compute", 0.6 if rank == 2 and attempt == 2 else 0.2)
    step += 1
    meet(step)
    progress.step(step)
    if step == 10:
        saved()
        meet("saved")
    if (attempt, step) == (0, 18) and rank == 1:
        os._exit(134)
    if (attempt, step) == (1, 20):
        saved()
        meet("saved")
        if rank == 3:
            os._exit(134)
        time.sleep(60)
if rank == 0:
    with progress.phase("evaluate"):
        took("evaluate", 3)
    write()
"""
JOB = """\
script = "program.py"
shape = "srun"
python = "/usr/bin/python3"
[preflight]
free_disk_gb = 0
[retry]
in_allocation = 1
requeue = 1
"""


def test_each_injected_loss_is_in_its_account(lab: Lab) -> None:
    """An input stall, saves, a death and the steps it cost, a requeue, a straggler, an evaluation of one rank."""
    lab.write(JOB, PROGRAM)
    run = lab.run("--no-container").folder
    assert lab.status(run)["state"] == "COMPLETED", (run / "logs" / "batch.log").read_text()
    made = json.loads(lab.kit("time", run.name, "--json").stdout)
    accounts, (truth, by_attempt) = made["accounts_rank_s"], _truth(run)
    assert made["detail"] == "phases"
    assert sum(accounts.values()) == pytest.approx(made["wall_s"] * 4, rel=0.01)
    assert accounts.get("unattributed", 0) < 0.01 * made["total_rank_s"]
    assert _sums(made["by_node"]) == pytest.approx(accounts, abs=0.1)
    assert len([node for node in made["by_node"] if node]) == 2
    lost = accounts["lost steps"]
    waits = sum(truth[rank]["communicate"] for rank in range(4))
    assert accounts["save stall"] == pytest.approx(sum(truth[rank]["save"] for rank in range(4)), rel=0.05)
    assert accounts["evaluation"] == pytest.approx(truth[0]["evaluate"], rel=0.05)
    assert accounts["idle at the end"] == pytest.approx(3 * truth[0]["evaluate"], rel=0.15)
    # The stall of 5 s, and what the other three ranks waited for it; the straggler's 0.4 s more of each of its ten steps.
    least = sum(min(one.get("communicate", 0.0) for one in of.values()) for of in by_attempt.values())
    data, compute = (sum(truth[rank][what] for rank in range(4)) for what in ("data", "compute"))
    loop = accounts["productive steps"] + accounts["input wait"] + accounts["waiting for stragglers"]
    assert loop + lost + accounts["first step"] == pytest.approx(data + compute + waits, rel=0.1)
    assert accounts["input wait"] == pytest.approx(data, rel=0.05)
    assert accounts["waiting for stragglers"] == pytest.approx(waits - 4 * least, rel=0.05)
    # Eight of eighteen steps were made once more: 0.2 s each.
    assert lost == pytest.approx(4 * 8 * 0.2, rel=0.1)
    events = [json.loads(line) for line in (run / "state" / "events.jsonl").read_text().splitlines()]
    requeued = next(event["epoch"] for event in events if event["event"] == "requeue")
    again = [event["epoch"] for event in events if event["event"] == "start"][1]
    assert accounts["held after requeue"] == pytest.approx(4 * (again - requeued), rel=0.05)
    second = [event["epoch"] for event in events if event["event"] == "attempt"][1]
    died = float((run / "state" / "failures-0").glob("*/rank-1.134").__next__().read_text().split()[0])
    assert accounts["restart"] == pytest.approx(4 * (second - died), rel=0.05)
    said = lab.kit("time", run.name).stdout
    assert "held after requeue" in said
    assert "ETTR" in said


def test_a_run_that_lives_is_accounted_so_far(lab: Lab) -> None:
    """And one that reports nothing."""
    lab.write(
        JOB, "import os, time\nwhile not os.path.exists(os.environ['KIT_RUN_DIR'] + '/finish'):\n    time.sleep(0.1)\n"
    )
    run = lab.submit("--no-container")
    try:
        lab.wait(lambda: "program, not split" in _time(lab, run)["accounts_rank_s"], run)
        found = _time(lab, run)
        assert (found["live"], found["detail"]) == (True, "events")
        assert "kit_rank" in " ".join(found["notes"])
    finally:
        (run / "finish").touch()
    lab.wait_end(run)
    assert _time(lab, run)["live"] is False


def _time(lab: Lab, run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lab.kit("time", run.name, "--json").stdout)
    return found


def _truth(run: Path) -> tuple[dict[int, Counter[str]], dict[int, dict[int, dict[str, float]]]]:
    """What each rank measured: over all attempts, and by attempt."""
    found: dict[int, Counter[str]] = {}
    by_attempt: dict[int, dict[int, dict[str, float]]] = {}
    for path in run.glob("truth-*.json"):
        attempt, rank = map(int, path.stem.split("-")[1:])
        measured = by_attempt.setdefault(attempt, {})[rank] = json.loads(path.read_text())
        found.setdefault(rank, Counter()).update(measured)
    return found, by_attempt


def _sums(nodes: dict[str, dict[str, float]]) -> dict[str, float]:
    summed: dict[str, float] = {}
    for of in nodes.values():
        for account, seconds in of.items():
            summed[account] = summed.get(account, 0.0) + seconds
    return summed
