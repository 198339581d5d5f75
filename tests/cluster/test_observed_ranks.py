"""Programs that report nothing: the kit finds the rank that the others wait for, and a dead node, by what it sees of them."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SICK = 3
PROGRAM = (Path(__file__).parents[1] / "sick" / "program.py").read_text(encoding="utf-8")
REPORTS = "from kit_rank import progress  # type: ignore[import-not-found]\n"
STRIPPED = PROGRAM.replace(
    REPORTS,
    "import contextlib, types\n"
    "progress = types.SimpleNamespace(step=lambda step: None, phase=lambda name: contextlib.nullcontext())\n",
)
JOB = "[preflight]\nfree_disk_gb = 0\n[watch]\nstall = 20\npatience = PATIENCE\n"


def events(run: Path) -> list[dict[str, Any]]:
    path = run / "state" / "events.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def why(lab: Lab, run: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(lab.kit("why", run.name, "--json").stdout)
    return said


@pytest.mark.parametrize(
    ("fault", "alarm", "says"),
    [
        ("save", "observed-stall", r"rank 3 \(NODE\) is in save \(program\.py:\d+\); 3 ranks wait for it"),
        ("stop", "observed-stall", r"rank 3 \(NODE\) is stopped.*; 3 ranks wait for it"),
        ("loader", "observed-stall", r"rank 3 \(NODE\) is in its data loader.*; 3 ranks wait for it"),
        ("order", "observed-stall", r"rank 3 \(NODE\) is in broadcast, and 3 ranks are in all_reduce"),
        ("sleep", "observed-slow", r"it may be slow: rank 3 \(NODE\) is in compute \(program\.py:\d+\); 3 ranks wait for it"),
        ("loop", "observed-slow", r"it may be slow: rank 3 \(NODE\) runs in compute .*; 3 ranks wait for it"),
    ],
)  # fmt: skip
def test_the_rank_that_the_others_wait_for_is_named_without_a_report(
    lab: Lab, runtime_of: Callable[[str], list[str]], fault: str, alarm: str, says: str
) -> None:
    assert "kit_rank" not in STRIPPED
    args = json.dumps([fault, str(SICK), "0.3"])
    job = f'script = "program.py"\nshape = "srun"\nargs = {args}\n{JOB}'
    lab.write(job.replace("PATIENCE", "5"), STRIPPED)
    run = lab.submit(*runtime_of("bubblewrap"))
    try:
        lab.wait((run / "state" / "stall-1" / "complete").exists, run)
        (event,) = (one for one in events(run) if one["event"] == "stall")
        assert (event["rule"], event["rank"], event["waiting"]) == (alarm, "3", "3")
        assert re.search(says.replace("NODE", event["node"]), why(lab, run)["line"]), why(lab, run)
        assert "nothing is ended for it" in (run / "logs" / "batch.log").read_text() or alarm == "observed-stall"
        if alarm == "observed-stall":
            lab.wait_end(run)
            assert lab.status(run)["exit_code"] == 76
            assert "it was ended: rank 3 (" in why(lab, run)["line"]
    finally:
        lab.slurm("scancel", str(lab.job(run)["JobId"]), check=False)
    lab.wait_end(run)
    assert lab.settled(run) == []


WAITS = "import time\ntime.sleep(3600)\n"


@pytest.fixture
def patient_lab(train_cpu: Path, tmp_path: Path) -> Iterator[Lab]:
    """A cluster that gives a silent node up after five minutes, as Slurm does where nobody has changed it."""
    with lab_on("patient", 2, train_cpu, tmp_path, {"SlurmdTimeout": "300"}) as lab:
        yield lab


def test_a_dead_node_is_noticed_within_a_minute(patient_lab: Lab) -> None:
    """At a loss of power. Until SlurmdTimeout, Slurm's answers say nothing of it."""
    lab = patient_lab
    lab.write(
        f'script = "program.py"\nshape = "srun"\npython = "/usr/bin/python3"\n{JOB.replace("PATIENCE", "5")}', WAITS
    )
    run = lab.submit("--no-container")
    node = lab.cluster.nodes[1].name
    try:
        lab.wait(lambda: len(list(run.glob("monitor/*.samples"))) == 2, run)
        for process in lab.node_processes(node):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        lab.wait(lambda: any(one["event"] == "stall" for one in events(run)), run, seconds=120)
        (event,) = (one for one in events(run) if one["event"] == "stall")
        assert (event["rule"], event["node"]) == ("observed-node", node)
        assert int(event["idle"]) <= 60
        lab.wait((run / "state" / "stall-1" / "complete").exists, run)
        said = why(lab, run)
        assert (said["rule"], said["verdict"]) == ("observed-node", "bad node"), said
        assert said["next"].endswith(f"slurm.exclude={node}")
    finally:
        lab.slurm("scancel", str(lab.job(run)["JobId"]), check=False)
