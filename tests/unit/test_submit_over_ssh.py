"""The program that submits on a cluster over ssh, with answers of sbatch and squeue that are lost or between a site's lines."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kit import shell
from kit.ssh import answers, shell_program
from tests.unit.test_submission import SQUEUE, TAKES, TIMED_OUT

KEY = "kit:test-1"


class Login:
    """A login node's folder of runs, with one run that is not submitted yet, and its stand-ins for Slurm's commands."""

    def __init__(self, folder: Path, sbatch: str, squeue: str) -> None:
        self.run = folder / "runs" / "test-1"
        (self.run / "state").mkdir(parents=True)
        (self.run / "manifest.json").write_text('{\n  "run_id": "test-1",\n  "job_id": null,\n  "links": []\n}\n')
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.bin / "jobs").touch()
        for name, script in (("sbatch", f"{TAKES}\n{sbatch}"), ("squeue", squeue), ("sleep", "true")):
            (self.bin / name).write_text(f"#!/bin/bash\n{script.replace('FOLDER', str(self.bin))}\n")
            (self.bin / name).chmod(0o755)

    def submit(self) -> tuple[str, str]:
        """The program's outcome, and what it says."""
        script = f"{self.run}/batch.sh"
        constants = {
            "RUNS": str(self.run.parent), "STORE": "/nowhere", "RUN": "test-1", "KIND": "run", "SCRIPT": "batch.sh",
            "RIGHT": "state/submitting", "AGAIN": "", "OLD": 0, "LINKS": 0, "KEY": KEY, "SIZE": 0, "SHA": "",
            "ARGV": shell_program.Words(("sbatch", "--parsable", f"--comment={KEY}", script)),
        }  # fmt: skip
        text = shell_program.text("submit", constants, mark="MARK", path=str(self.bin))
        said = shell.exchange(["sh"], [text.encode()]).stdout.partition(b"\nMARK\n")[2]
        reply = answers.read_reply(gzip.decompress(said), stderr="")
        return reply.texts["result"], reply.texts["said"]

    @property
    def job(self) -> int | None:
        """The number in the run's record."""
        return json.loads((self.run / "manifest.json").read_text())["job_id"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("squeue", [SQUEUE, f"echo 'Maintenance | on | Monday | x'; {SQUEUE}; echo bye"])
@pytest.mark.parametrize(
    "sbatch",
    [
        "take; echo 1",
        "echo Welcome; take; echo '1;cluster'; echo '1 December: maintenance'",
        f"take; {TIMED_OUT}",
        "take; echo 'Submitted.'",
        "take; take; echo 1; echo 2",
    ],
)
def test_the_job_is_recorded(tmp_path: Path, sbatch: str, squeue: str) -> None:
    login = Login(tmp_path, sbatch, squeue)
    assert login.submit() == ("submitted", "1")
    assert login.job == 1
    assert login.submit() == ("submitted", "1"), "asked once more, there is no second job"


def test_a_refusal_leaves_nothing(tmp_path: Path) -> None:
    login = Login(tmp_path, "echo 'sbatch: error: Invalid account' >&2; exit 1", SQUEUE)
    assert login.submit() == ("refused", "sbatch: error: Invalid account")
    assert not login.run.exists()


def test_nothing_is_removed_while_the_answer_is_open(tmp_path: Path) -> None:
    login = Login(tmp_path, f"take; {TIMED_OUT}", TIMED_OUT)
    assert login.submit()[0] == "unknown"
    assert login.run.exists()
    assert login.job is None
