"""States of runs that Slurm has forgotten, read from the run folder."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kit.runs import manifest, run_facts, status
from kit.slurm.client import JobId, QueuedJob
from kit.spec.run_paths import RunPaths
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


def test_a_run_without_a_container_has_no_image(run_dir: Path) -> None:
    """Its job may name one: a launcher does by default."""
    assert manifest.read(RunPaths(run_dir).manifest).image_name == "train-cpu"
    assert run_facts.read(run_dir).image_name is None


def test_a_run_that_was_cancelled_while_it_waited(run_dir: Path) -> None:
    """Until it is submitted again."""
    RunPaths(run_dir).cancelled.touch()
    assert state(run_dir) == "CANCELLED"
    before = (SUBMITTED - timedelta(hours=1)).timestamp()
    os.utime(RunPaths(run_dir).cancelled, (before, before))
    assert state(run_dir) == "LOST"


class Clock:
    """Time that passes when somebody sleeps; at given seconds the batch script writes into its record."""

    def __init__(self, run_dir: Path, lines: dict[float, dict[str, str]]) -> None:
        self.now, self.path, self.lines = 0.0, RunPaths(run_dir).events, dict(lines)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for when in [when for when in self.lines if when <= self.now]:
            with self.path.open("a") as file:
                file.write(json.dumps(self.lines.pop(when)) + "\n")


def test_a_run_is_asked_about_every_five_seconds_and_when_its_record_turns(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(
        run_dir,
        {
            2.0: {"event": "start", "job_id": "7", "nodes": "n1", "restart": "0"},
            **{10.0 + n: {"event": "restart", "role": "r"} for n in range(40)},
            60.0: {"event": "end", "exit_code": "0"},
        },
    )
    monkeypatch.setattr("kit.runs.status.time", clock)
    # The batch script has merged the logs when Slurm says that the job has ended.
    RunPaths(run_dir).closed.write_text("60.5\n")
    asked: list[float] = []

    def queue(cluster: str) -> dict[int | str, QueuedJob]:
        asked.append(clock.now)
        state = "PENDING" if clock.now < 2 else "RUNNING" if clock.now < 61 else "COMPLETED"
        return {7: QueuedJob(job_id=7, state=state, reason="None", nodes="n1", elapsed="1:00")}

    ended = status.wait(run_dir, queue=queue, on_poll=lambda _: None)
    assert ended.state == "COMPLETED"
    # At the start, at the job's start, every five seconds while it runs, and a few times at its end.
    assert len([when for when in asked if 2.5 < when < 60]) <= 58 / 5
    assert len(asked) <= 58 / 5 + 6
    assert ended.exit_code == 0
    assert clock.now < 64


@pytest.mark.parametrize(("code", "state"), [(0, "COMPLETED"), (143, "PREEMPTED")])
def test_a_run_that_was_preempted_once_and_ended_well_later_is_completed(run_dir: Path, code: int, state: str) -> None:
    """Slurm 24.11 calls it PREEMPTED all the same: the mark of the preemption stayed on the job."""
    lines = [
        {"event": "start", "job_id": "7", "nodes": "n1", "restart": "1"},
        {"event": "end", "exit_code": str(code)},
    ]
    RunPaths(run_dir).events.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    ended: dict[JobId, QueuedJob] = {
        7: QueuedJob(job_id=7, state="PREEMPTED", reason="None", nodes="n1", elapsed="0:30")
    }
    (found,) = status.of([run_dir], queue=lambda cluster: ended)
    assert found.state == state


@pytest.mark.parametrize("started", [True, False], ids=["it had started", "it starts meanwhile"])
def test_a_run_that_ends_while_slurm_is_asked_has_its_own_code(run_dir: Path, started: bool) -> None:
    """Its record was read before the answer came: it seemed to have no end, and `kit submit --wait` returned 1 for it."""
    record = RunPaths(run_dir).events
    start = json.dumps({"event": "start", "job_id": "7", "nodes": "n1", "restart": "0"}) + "\n"
    record.write_text(start if started else "")

    def slow(cluster: str) -> dict[int | str, QueuedJob]:
        with record.open("a") as file:
            file.write("" if started else start)
            file.write(json.dumps({"event": "end", "exit_code": "74"}) + "\n")
        return {7: QueuedJob(job_id=7, state="FAILED", reason="NonZeroExitCode", nodes="n1", elapsed="0:30")}

    ended = status.wait(run_dir, queue=slow, on_poll=lambda _: None)
    assert (ended.state, ended.exit_code, ended.reason) == ("FAILED", 74, "NonZeroExitCode")


def test_a_run_without_an_end_stays_one_at_the_second_look(run_dir: Path) -> None:
    RunPaths(run_dir).events.write_text(
        json.dumps({"event": "start", "job_id": "7", "nodes": "n1", "restart": "0"}) + "\n"
    )
    ended: dict[JobId, QueuedJob] = {7: QueuedJob(job_id=7, state="FAILED", reason="None", nodes="n1", elapsed="0:30")}
    (found,) = status.of([run_dir], queue=lambda cluster: ended)
    assert found.exit_code is None
    assert "it recorded no end" in found.reason
