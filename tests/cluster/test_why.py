"""`kit why` on jobs of a real Slurm, through the command line. The rules one by one: tests/unit/test_health.py."""

from __future__ import annotations

import json
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
