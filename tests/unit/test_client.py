"""Answers of Slurm's commands. A stand-in says what a real sbatch cannot be made to say."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.errors import SlurmError
from kit.slurm import client


def submitted(folder: Path, script: str) -> int:
    (folder / "sbatch").write_text(f"#!/bin/bash\n{script}\n")
    (folder / "sbatch").chmod(0o755)
    return client.submit(["sbatch", "--parsable", "batch.sh"], env={"PATH": f"{folder}:/usr/bin:/bin"})


@pytest.mark.parametrize("said", ["4711", "4711;cluster-2", "a word of the site's own\n4711"])
def test_the_number_of_a_job(tmp_path: Path, said: str) -> None:
    assert submitted(tmp_path, f"cat <<'END'\n{said}\nEND") == 4711


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'sbatch: error: Invalid account' >&2; exit 1", "Invalid account"),
        ("echo 'Submitted batch job'", "answered without a job id"),
        ("true", "answered without a job id"),
    ],
)
def test_an_answer_without_one(tmp_path: Path, script: str, said: str) -> None:
    with pytest.raises(SlurmError, match=said):
        submitted(tmp_path, script)


def test_a_full_queue_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch waits for room for hours: the time-out alone does not say what is wrong."""
    monkeypatch.setattr(client, "_TIMEOUT_S", 2.0)
    said = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    with pytest.raises(
        SlurmError, match=f"no answer within 2 s: sbatch --parsable batch.sh; its last line: {said}"
    ) as found:
        submitted(tmp_path, f"echo '{said}' >&2; exec sleep 60")
    assert "MaxJobCount" in (found.value.hint or "")
