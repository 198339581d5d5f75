"""Ordinary runs give no alarm: `python -m tests.sick.calm --steps 5000`, some minutes; 1 when there was one.

A job of two nodes and a sweep of four points run side by side on four nodes: torch over gloo with a slow first step and a
compilation, steps of uneven length, saves by rank 0 alone and by all, evaluations, a data phase, and an end at different times.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from kit import data_folders
from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab

PROGRAM = Path(__file__).with_name("ordinary.py")
POINTS = 4
_LONGEST_S = 3600


JOB = """\
script = "program.py"
args = ["{steps}"]
[container]
runtime = "bubblewrap"
[preflight]
free_disk_gb = 0
[resources]
ranks_per_node = 2
time = "02:00:00"
"""


def submit(lab: Lab, steps: int) -> Path:
    """One job of two nodes."""
    lab.write(f'shape = "srun"\n{JOB.format(steps=steps)}nodes = 2\n', PROGRAM.read_text(encoding="utf-8"))
    return lab.submit()


def sweep(lab: Lab, steps: int) -> list[Path]:
    """Four points of one node each; their run folders."""
    points = f"nodes = 1\n[sweep]\n[sweep.grid]\nseed = {[*range(POINTS)]}\n"
    lab.write(f'shape = "torchrun"\n{JOB.format(steps=steps)}{points}', PROGRAM.read_text(encoding="utf-8"))
    folder = Path(lab.kit("sweep", "--cluster", lab.cluster.name).stdout.splitlines()[-1])
    # Their folders are made when they start.
    return [folder / "points" / f"{folder.name}.{number}" for number in range(POINTS)]


def events(run: Path) -> list[dict[str, object]]:
    """What the batch script has recorded so far."""
    path = run / "state" / "events.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def alarms(run: Path) -> list[str]:
    """Of stalled ranks."""
    return [f"{run.name}: {e}" for e in events(run) if e["event"] == "stall"]


def ended(run: Path) -> bool:
    """Whether its batch script has said its last word."""
    return any(e["event"] == "end" for e in events(run))


def steps_of(run: Path) -> int:
    """Steps that the furthest rank has done."""
    reports = [
        report.split(" ")
        for path in run.glob("monitor/*.progress")
        for line in path.read_text(encoding="utf-8").splitlines()
        for report in line.split("\t")[1:]
    ]
    return max((int(words[1]) for words in reports if len(words) > 5), default=0)


def state(lab: Lab, run: Path) -> str:
    """Of the run, as `kit status` has it."""
    return str(lab.status(run)["state"])


def main() -> int:
    """0 when no run gave an alarm and all ended well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000)
    asked = parser.parse_args()
    each = asked.steps // 6
    with tempfile.TemporaryDirectory(prefix="kit-calm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        project = folder / "project"
        project.mkdir()
        with lab_on("calm", 4, data_folders.user_data() / "images", project) as lab:
            began = time.monotonic()
            runs = [submit(lab, 2 * each), *sweep(lab, each)]
            until = time.monotonic() + _LONGEST_S
            # By their events: asking the kit of each would keep the machine busy.
            while not all(ended(run) for run in runs) and time.monotonic() < until:
                time.sleep(5)
            found = [line for run in runs for line in alarms(run)]
            bad = [run.name for run in runs if state(lab, run) != "COMPLETED"]
            steps = sum(steps_of(run) for run in runs)
            print(f"{steps} steps of {len(runs)} runs in {time.monotonic() - began:.0f} s: {len(found)} alarms")
            for line in [*found, *(f"{name}: did not end well" for name in bad)]:
                print(f"  {line}")
    return 1 if found or bad or steps < asked.steps * 0.99 else 0


if __name__ == "__main__":
    sys.exit(main())
