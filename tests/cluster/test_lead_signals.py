"""The signal before a time limit: each rank gets one that its program saves on, as plain Slurm's TERM would have saved it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.test_faults import QUICK, read, usr1

pytestmark = pytest.mark.cluster

# Each rank saves on its own signals, and rank 3 on none.
PROGRAM = """\
import os, pathlib, signal, sys, time
run, rank = pathlib.Path(os.environ["KIT_RUN_DIR"]), int(os.environ["RANK"])
def save(number, _frame):
    (run / f"saved-{rank}").write_text(signal.Signals(number).name)
    sys.exit(128 + number)
for name in (["SIGUSR1"], ["SIGTERM"], ["SIGUSR2", "SIGTERM"], [])[rank]:
    signal.signal(signal.Signals[name], save)
(run / f"up-{rank}").touch()
time.sleep(600)
"""
JOB = f"""\
script = "program.py"
python = "/usr/bin/python3"
shape = "srun"
{QUICK}[resources]
nodes = 2
ranks_per_node = 2
time = "30"
"""


def saved(lab: Lab, slurm: str) -> tuple[Path, dict[str, str]]:
    """A run that got the lead's signal, and the signal of each rank that saved."""
    lab.write(f"{JOB}[slurm]\n{slurm}\n", PROGRAM)
    run = lab.submit("--no-container")
    lab.wait(lambda: len(list(run.glob("up-*"))) == 4, run)
    usr1(lab, run)
    lab.wait_end(run)
    return run, {path.name: path.read_text() for path in run.glob("saved-*")}


def test_a_program_that_saves_on_term_alone_is_saved(lab: Lab) -> None:
    run, found = saved(lab, "lead = 30")
    assert found == {"saved-0": "SIGUSR1", "saved-1": "SIGTERM", "saved-2": "SIGTERM"}, read(run, "batch")
    # The rank without a handler gets TERM, and no rank is left to be killed.
    assert "rank-3" in "".join(path.name for path in (run / "state").rglob("rank-3.143*")), read(run, "batch")
    assert "did not end" not in read(run, "batch")
    assert json.loads(lab.kit("why", run.name, "--json").stdout)["rule"] == "time-limit-saved"
    assert lab.settled(run) == []


def test_the_job_names_its_signal(lab: Lab) -> None:
    run, found = saved(lab, 'signal = "SIGUSR2@60"')
    assert "#SBATCH --signal=B:USR1@60\n" in (run / "batch.sh").read_text()
    assert found == {"saved-2": "SIGUSR2"}, read(run, "batch")
    assert lab.settled(run) == []
