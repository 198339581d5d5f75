"""A program that loses time on purpose, in any start shape, and writes down by its own clock how much and on what."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Ranks that meet at every step: all of a plain job, those of one role, all groups of a job of replicas; and all before each save.
# An input stall of 5 s, three saves of 2 s, two deaths of which the second sends the job back to the queue, a straggler at half
# speed in the last attempt, an evaluation of one rank.
PROGRAM = """\
import json, os, sys, time
from kit_rank import progress
role, rank, run = os.environ.get("KIT_ROLE", ""), int(os.environ["RANK"]), os.environ["KIT_RUN_DIR"]
attempt, start = int(os.environ["KIT_ATTEMPT"]), int(os.environ["KIT_RESTART_COUNT"])
shape = "replicas" if role.startswith("replica") else "roles" if role else "plain"
first = {"replica-1": 2, "actor": 2}.get(role, 0)
me = first + rank
peers = range(first, first + 2) if shape == "roles" else range(4)
# Of a job of replica groups the group that died comes back alone; the second time there are too few, and the job is queued again.
slow = (attempt, me) == (1 if shape == "replicas" else 2, 2)
deaths = {(0, 0, 18): 3, (0, 1, 20): 3} if shape == "replicas" else {(0, 0, 18): 1, (1, 1, 20): 3}
truth = {"role": role, "began": time.time()}
# Opened once, and never made shorter: where a file is written anew, its close may wait for the disk for seconds.
file = os.open(f"{run}/truth-{attempt}-{start}-{me}.json", os.O_WRONLY | os.O_CREAT, 0o600)

def write():
    os.pwrite(file, json.dumps(truth).ljust(1000).encode(), 0)

def took(what, seconds):
    began = time.monotonic()
    time.sleep(seconds)
    truth[what] = truth.get(what, 0) + time.monotonic() - began

def meet(step, others=peers):
    began = time.monotonic()
    with progress.phase("communicate"):
        open(f"{run}/met-{attempt}-{step}-{me}", "w").close()
        while not all(os.path.exists(f"{run}/met-{attempt}-{step}-{other}") for other in others):
            time.sleep(0.005)
    truth["communicate"] = truth.get("communicate", 0) + time.monotonic() - began
    write()

def save():
    with progress.phase("save"):
        took("save", 2)
    write()
    open(f"{run}/saved-{step}", "w").close()

def die():
    truth["died"] = time.time()
    write()
    os._exit(134)

step = max([int(name[6:]) for name in os.listdir(run) if name.startswith("saved-")], default=0)
truth["first"] = step
took("start", 1)
progress.step(step)
while step < 30:
    began, apart = time.monotonic(), truth.get("data", 0) + truth.get("communicate", 0)
    with progress.phase("data"):
        took("data", 5 if (attempt, start, step, me) == (0, 0, 5, 0) else 0.01)
    took("compute", 0.4 if slow else 0.2)
    step += 1
    truth["step"] = step
    meet(step)
    progress.step(step)
    # All of a step but its waits: what this program itself needs for files and reports, too, which is much on a busy machine.
    apart = truth["data"] + truth["communicate"] - apart
    truth["own"] = truth.get("own", 0) + time.monotonic() - began - apart
    truth["steps"] = truth.get("steps", 0) + 1
    dies = deaths.get((attempt, start, step))
    if step % 10 == 0:
        meet(f"before-{step}", range(4))
        save()
        meet(f"after-{step}", range(4))
        if dies is not None:
            if dies == me:
                die()
            time.sleep(60)
    elif dies == me:
        die()
if me == 0:
    with progress.phase("evaluate"):
        took("evaluate", 3)
truth["ended"] = time.time()
write()
"""


@dataclass(frozen=True)
class Truth:
    """What the processes of the ranks measured. processes: (attempt, start, rank) -> their own words."""

    processes: dict[tuple[int, int, int], dict[str, Any]]

    def of(self, what: str) -> float:
        """Seconds over all ranks."""
        return sum(float(one.get(what, 0.0)) for one in self.processes.values())

    def waits(self) -> float:
        """Communication beyond that of the rank with the least a step, attempt by attempt, among ranks that meet."""
        seconds: Counter[tuple[int, str, int]] = Counter()
        steps: Counter[tuple[int, str, int]] = Counter()
        for (attempt, _, rank), one in self.processes.items():
            key = attempt, one["role"].rstrip("0123456789"), rank
            seconds[key] += one.get("communicate", 0.0)
            steps[key] += one.get("step", one["first"]) - one["first"]
        least: dict[tuple[int, str], float] = {}
        for key in seconds:
            least[key[:2]] = min(least.get(key[:2], float("inf")), seconds[key] / max(1, steps[key]))
        return sum(max(0.0, seconds[key] - least[key[:2]] * steps[key]) for key in seconds)

    def idle(self) -> float:
        """From the end of each rank of the last attempt to that of the last one, which evaluates meanwhile."""
        ends = [one["ended"] for one in self.processes.values() if "ended" in one]
        assert len(ends) == 4
        return float(sum(max(ends) - end for end in ends))

    def lost(self) -> float:
        """Steps that a rank's next process made once more, by what a step of the one before took without its waits."""
        summed, before = 0.0, dict[int, dict[str, Any]]()
        for (_, _, rank), one in sorted(self.processes.items()):
            last = before.get(rank)
            if last is not None and last.get("steps"):
                summed += max(0, last["step"] - one["first"]) * last["own"] / last["steps"]
            before[rank] = one
        return summed


def truth(run: Path) -> Truth:
    """What PROGRAM wrote into a run folder."""
    found = {}
    for path in run.glob("truth-*.json"):
        attempt, start, rank = map(int, path.stem.split("-")[1:])
        found[attempt, start, rank] = json.loads(path.read_text(encoding="utf-8"))
    return Truth(found)


def check(made: dict[str, Any], run: Path) -> dict[str, tuple[float, float]]:
    """Asserts that `kit time --json` has each loss in its account, within 5 %; account -> (found, injected)."""
    told, accounts = truth(run), made["accounts_rank_s"]
    assert made["detail"] == "phases"
    assert sum(accounts.values()) == pytest.approx(made["wall_s"] * 4, rel=0.01)
    assert accounts.get("unattributed", 0.0) < 0.01 * made["total_rank_s"]
    events = [json.loads(line) for line in (run / "state" / "events.jsonl").read_text().splitlines()]
    at = {name: [one["epoch"] for one in events if one["event"] == name] for name in ("start", "requeue")}
    injected = {
        "input wait": told.of("data"),
        "save stall": told.of("save"),
        "evaluation": told.of("evaluate"),
        "idle at the end": told.idle(),
        "waiting for stragglers": told.waits(),
        "lost steps": told.lost(),
        "held after requeue": 4 * (at["start"][1] - at["requeue"][0]),
    }
    found = {name: (accounts.get(name, 0.0), seconds) for name, seconds in injected.items()}
    assert {name: one for name, (one, _) in found.items()} == pytest.approx(injected, rel=0.05), found
    return found
