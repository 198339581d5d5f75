"""Ordinary runs give no alarm: `python -m tests.sick.calm --steps 5000`, some minutes; 1 when there was one.

A job and four more, as the points of a sweep are, run side by side on four nodes: torch over gloo with a slow first step and a
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
_LONGEST_S = 3600


def submit(lab: Lab, name: str, steps: int, *, nodes: int, shape: str) -> Path:
    """One job of two ranks a node."""
    job = f'script = "program.py"\nshape = "{shape}"\nargs = ["{steps}", "{name}"]\n[resources]\nnodes = {nodes}\n'
    job += "ranks_per_node = 2\n"
    lab.write(f'{job}time = "02:00:00"\n[preflight]\nfree_disk_gb = 0\n', PROGRAM.read_text(encoding="utf-8"))
    return lab.submit("--set", "container.runtime=bubblewrap")


def alarms(run: Path) -> list[str]:
    """What the batch script recorded of ranks that stand still."""
    path = run / "state" / "events.jsonl"
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    return [f"{run.name}: {e}" for e in events if e["event"] == "stall"]


def steps_of(run: Path) -> int:
    """Steps that the furthest rank has done."""
    reports = [
        report.split(" ")
        for path in run.glob("monitor/*.progress")
        for line in path.read_text(encoding="utf-8").splitlines()
        for report in line.split("\t")[1:]
    ]
    return max((int(words[1]) for words in reports if len(words) > 5), default=0)


def ended(lab: Lab, run: Path) -> bool:
    """Whether Slurm is done with it."""
    return lab.job(run)["JobState"] not in {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}


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
            runs = [submit(lab, "wide", 2 * each, nodes=2, shape="srun")]
            # What a sweep's points are to the nodes: jobs beside each other, one rank pair each.
            runs += [submit(lab, f"point-{n}", each, nodes=1, shape="torchrun") for n in range(4)]
            until = time.monotonic() + _LONGEST_S
            while not all(ended(lab, run) for run in runs) and time.monotonic() < until:
                time.sleep(5)
            found = [line for run in runs for line in alarms(run)]
            bad = [run.name for run in runs if lab.job(run)["JobState"] != "COMPLETED"]
            steps = sum(steps_of(run) for run in runs)
            print(f"{steps} steps of {len(runs)} runs in {time.monotonic() - began:.0f} s: {len(found)} alarms")
            for line in [*found, *(f"{name}: did not end well" for name in bad)]:
                print(f"  {line}")
    return 1 if found or bad or steps < asked.steps * 0.99 else 0


if __name__ == "__main__":
    sys.exit(main())
