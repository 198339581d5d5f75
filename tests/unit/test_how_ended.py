"""Ended runs are answered from their folders: the same with and without a controller."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kit.errors import SlurmError
from kit.hosts import status
from kit.record import manifest
from kit.schema.run_paths import RunPaths
from kit.slurm.client import JobId, QueuedJob
from tests.unit.test_status import run_dir

__all__ = ["run_dir"]

LINE = "slurmstepd: error: *** {what} ON n1 CANCELLED AT 2026-11-21T13:00:00{why} ***\n"
TERM = {"event": "signal", "name": "TERM", "job_id": 7, "epoch": 20.0}


def close(run: Path, code: int, *between: dict[str, object], log: str = "", job: int = 7) -> None:
    """The batch script's record of a start and its end, closed."""
    paths = RunPaths(run)
    start = {"event": "start", "job_id": job, "nodes": "n1", "restart": 0, "epoch": 10.0}
    end = {"event": "end", "job_id": job, "exit_code": str(code), "epoch": 75.0}
    with paths.events.open("a") as sink:
        sink.write("".join(f"{json.dumps(line)}\n" for line in (start, *between, end)))
    paths.logs.mkdir(exist_ok=True)
    with paths.batch_log.open("a") as sink:
        sink.write(f"n1: job {job} (digits), queued again 0 times, run folder x\n{log}")
    paths.closed.write_text("76.0\n")


def no_controller(_: str) -> dict[JobId, QueuedJob]:
    raise SlurmError("squeue could not be asked")


def seen(run: Path, jobs: dict[JobId, QueuedJob] | None = None) -> status.Status:
    (one,) = status.read_statuses([run], queue=no_controller if jobs is None else lambda _: jobs)
    return one


def queued(state: str) -> dict[JobId, QueuedJob]:
    return {7: QueuedJob(job_id=7, state=state, reason="None", nodes="n1", elapsed="1:00")}


@pytest.mark.parametrize(
    ("code", "events", "log", "state"),
    [
        (0, (), "", "COMPLETED"),
        (3, (), "", "FAILED"),
        (143, (TERM,), "", "CANCELLED"),
        (0, (TERM,), LINE.format(what="JOB 7", why=""), "CANCELLED"),
        (143, (TERM,), LINE.format(what="JOB 7", why=" DUE TO TIME LIMIT"), "TIMEOUT"),
        (143, (TERM,), LINE.format(what="STEP 7.0", why=" DUE TO TIME LIMIT"), "TIMEOUT"),
        (143, (TERM,), LINE.format(what="JOB 7", why=" DUE TO PREEMPTION"), "PREEMPTED"),
        (0, (TERM,), LINE.format(what="JOB 7", why=" DUE TO PREEMPTION"), "COMPLETED"),
        (143, (TERM,), LINE.format(what="JOB 7", why=" DUE TO NODE FAILURE"), "NODE_FAIL"),
        (
            143,
            (),
            "n1: Slurm preempted the job, and the ranks ended with 0: whether they were done is not known\n",
            "PREEMPTED",
        ),
        (143, (), "", "FAILED"),
        # The ranks' own output, and another job's line.
        (3, (), LINE.format(what="JOB 7", why=" DUE TO TIME LIMIT"), "FAILED"),
        (143, (TERM,), LINE.format(what="JOB 8", why=" DUE TO TIME LIMIT"), "CANCELLED"),
    ],
)
def test_the_state_of_an_ended_run(
    run_dir: Path, code: int, events: tuple[dict[str, object], ...], log: str, state: str
) -> None:
    close(run_dir, code, *events, log=log)
    for one in (seen(run_dir), seen(run_dir, {}), seen(run_dir, queued("COMPLETING"))):
        assert (one.state, one.exit_code, one.job_id) == (state, code, 7)
    assert seen(run_dir).elapsed == ("" if code == 0 else "01:05")


def test_a_line_of_an_earlier_start_is_not_of_the_last(run_dir: Path) -> None:
    close(run_dir, 143, TERM, log=LINE.format(what="JOB 7", why=" DUE TO PREEMPTION"))
    close(run_dir, 143, TERM)
    assert seen(run_dir).state == "CANCELLED"
    close(run_dir, 5)
    assert seen(run_dir).state == "FAILED", "its last start was not asked to end"


def test_a_run_whose_record_is_not_closed_is_slurms(run_dir: Path) -> None:
    """Its logs are not merged, or its batch script was killed there."""
    close(run_dir, 0)
    RunPaths(run_dir).closed.unlink()
    assert seen(run_dir, queued("COMPLETING")).state == "COMPLETING"
    with pytest.raises(SlurmError):
        seen(run_dir)


def test_a_run_that_was_submitted_again_is_slurms(run_dir: Path) -> None:
    close(run_dir, 143, TERM)
    path = RunPaths(run_dir).manifest
    manifest.read_manifest(path).model_copy(update={"job_id": 9, "earlier_job_ids": (7,)}).write(path)
    later = RunPaths(run_dir).closed.stat().st_mtime + 5
    os.utime(path, (later, later))
    jobs: dict[JobId, QueuedJob] = {9: QueuedJob(job_id=9, state="PENDING", reason="", nodes="", elapsed="0:00")}
    assert seen(run_dir, jobs).state == "PENDING"


def test_cancelled_resumed_and_cancelled_again_while_it_waited(run_dir: Path) -> None:
    """It became FAILED when Slurm had forgotten the second job: the exit code of the first came before the cancel (D9)."""
    test_a_run_that_was_submitted_again_is_slurms(run_dir)
    RunPaths(run_dir).cancelled.touch()
    later = RunPaths(run_dir).manifest.stat().st_mtime + 5
    os.utime(RunPaths(run_dir).cancelled, (later, later))
    assert seen(run_dir, {}).state == "CANCELLED"


def test_a_chain_is_slurms(run_dir: Path) -> None:
    """Its next link continues after a code other than 0."""
    close(run_dir, 143)
    path = RunPaths(run_dir).manifest
    manifest.read_manifest(path).model_copy(update={"links": (8,)}).write(path)
    os.utime(path, (1.0, 1.0))
    jobs: dict[JobId, QueuedJob] = {8: QueuedJob(job_id=8, state="RUNNING", reason="", nodes="", elapsed="0:01")}
    assert seen(run_dir, jobs).state == "RUNNING"
