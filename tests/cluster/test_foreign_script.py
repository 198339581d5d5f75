"""`kit submit x.sh`: a batch script that is not the kit's is a run, with its output, its code and its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.lab import Lab

pytestmark = pytest.mark.cluster

ENDS = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2
#SBATCH --output=own-%j.out
srun bash -c 'echo rank $SLURM_PROCID of $SLURM_NTASKS in $PWD'
exit 7
"""
SAVES = """\
#!/bin/bash
#SBATCH --nodes=1
trap 'echo saved >saved; exit 3' TERM
trap 'echo lead' USR1
scancel --batch --signal=USR1 $SLURM_JOB_ID
while :; do sleep 0.1; done
"""


def events(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "state/events.jsonl").read_text(encoding="utf-8").splitlines()]


def test_its_output_code_and_end_are_known(lab: Lab) -> None:
    (lab.project / "own.sh").write_text(ENDS, encoding="utf-8")
    done = lab.kit("submit", "own.sh", "--cluster", lab.cluster.name, "--wait", check=False)
    assert done.returncode == 7, done.stderr
    run = Path(done.stdout.split()[0])
    said = lab.kit("logs", run.name).stdout
    assert all(f"rank {rank} of 4 in {run}/workspace" in said for rank in range(4)), said
    assert "FAILED" in lab.kit("status", run.name).stdout
    assert [one["event"] for one in events(run)] == ["start", "attempt", "end"]
    assert list(lab.project.glob("own-*.out")), "where the script's header wants it"


def test_signals_reach_it_as_from_slurm(lab: Lab) -> None:
    """One to the batch shell alone is passed on; one to all of the job's processes comes once."""
    (lab.project / "saves.sh").write_text(SAVES, encoding="utf-8")
    run = Path(lab.kit("submit", "saves.sh", "--cluster", lab.cluster.name).stdout.split()[0])
    lab.wait(lambda: (run / "logs/batch.log").exists() and "lead" in (run / "logs/batch.log").read_text(), run)
    lab.kit("cancel", run.name)
    lab.wait(lambda: events(run)[-1]["event"] == "end", run)
    assert [(one["event"], one.get("name"), one.get("exit_code")) for one in events(run)[2:]] == [
        ("signal", "B:USR1", None),
        ("signal", "TERM", None),
        ("end", None, "3"),
    ]
    assert (run / "workspace/saved").read_text(encoding="utf-8") == "saved\n"
    assert (run / "logs/batch.log").read_text(encoding="utf-8").count("lead") == 1
