"""What became of a run that Slurm has forgotten, by what is in its folder."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kit.runs import manifest, status
from kit.spec.paths import RunPaths
from tests.support import make_site, plan_of, write_job

SUBMITTED = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of job 7, submitted at noon, without any record of its own."""
    job = write_job(tmp_path, 'name = "digits"\nlauncher = "ddp"\n[container]\nruntime = "bare"\n')
    folder = tmp_path / "runs" / "digits-1"
    (folder / "state").mkdir(parents=True)
    made = plan_of(job, site=make_site(run_dir=folder, containers=False))
    of = manifest.of(made, job_file=job, user="ada", now=SUBMITTED, slurm_version="22.05")
    of.model_copy(update={"job_id": 7}).write(RunPaths(folder).manifest)
    return folder


def state(run_dir: Path) -> str:
    (found,) = status.of([run_dir], queue=lambda cluster: {})
    return found.state


def test_a_forgotten_run_is_what_it_said_last(run_dir: Path) -> None:
    assert state(run_dir) == "LOST"
    for code, said in ((0, "COMPLETED"), (143, "FAILED")):
        lines = [
            {"event": "start", "job_id": "7", "nodes": "n1", "restart": "0"},
            {"event": "end", "exit_code": str(code)},
        ]
        RunPaths(run_dir).events.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        assert state(run_dir) == said


def test_a_run_that_was_cancelled_while_it_waited(run_dir: Path) -> None:
    """Until it is submitted again."""
    RunPaths(run_dir).cancelled.touch()
    assert state(run_dir) == "CANCELLED"
    before = (SUBMITTED - timedelta(hours=1)).timestamp()
    os.utime(RunPaths(run_dir).cancelled, (before, before))
    assert state(run_dir) == "LOST"
