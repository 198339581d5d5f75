"""`kit wait`: many runs, one process, at most two questions to Slurm a minute."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import kit
from kit import shell
from kit.answers.wait_for_runs import RunEvent, RunsWatch, events
from kit.errors import NoAnswerError, SlurmError, StillRunningError, ToolError
from kit.hosts.recent_queue import RecentQueue
from kit.schema.run_paths import RunPaths
from kit.slurm.accounting import Accounted
from kit.slurm.client import JobId, QueuedJob
from tests.unit.test_how_ended import close
from tests.unit.test_status import SUBMITTED, run_dir

__all__ = ["run_dir"]


class Slurm:
    """A clock, and a Slurm that counts the questions. What shall happen at which second is in `plan`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.jobs: dict[JobId, QueuedJob] = {}
        self.known: dict[JobId, Accounted] = {}
        self.asked: list[float] = []
        self.said: list[str] = []
        self.down: Callable[[], bool] = lambda: False
        self.plan: list[tuple[float, Callable[[], None]]] = []

    def queue(self, _: str) -> dict[JobId, QueuedJob]:
        self.asked.append(self.now)
        if self.down():
            raise SlurmError("squeue could not be asked")
        return self.jobs

    def history(self, _: str, jobs: object) -> dict[JobId, Accounted]:
        self.asked.append(self.now)
        return self.known

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for one in [one for one in self.plan if one[0] <= self.now]:
            self.plan.remove(one)
            one[1]()

    def watch(self, *runs: Path) -> RunsWatch:
        return RunsWatch(runs, queue=self.queue, history=self.history, say=self.said.append, now=self.monotonic)

    def all(self, watch: RunsWatch, *, first: bool = False, timeout: float | None = None) -> list[RunEvent]:
        return [*events(watch, first=first, timeout=timeout, now=self.monotonic, sleep=self.sleep)]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm()
    # The time without answers is the same clock's.
    monkeypatch.setattr("kit.hosts.patient_queue.time.monotonic", made.monotonic)
    return made


def job(state: str, number: JobId = 7) -> dict[JobId, QueuedJob]:
    return {number: QueuedJob(job_id=number, state=state, reason="None", nodes="n1", elapsed="1:00")}


def many(run_dir: Path, count: int) -> Iterator[Path]:
    for index in range(count):
        folder = run_dir.with_name(f"digits-1-{index}")
        shutil.copytree(run_dir, folder)
        paths = RunPaths(folder)
        record = json.loads(paths.manifest.read_text()) | {"run_id": folder.name, "job_id": 100 + index}
        paths.manifest.write_text(json.dumps(record))
        yield folder


def write(run: Path, **event: object) -> None:
    with RunPaths(run).events.open("a") as sink:
        sink.write(f"{json.dumps({'job_id': 7, 'restart': 0, 'epoch': 1.0} | event)}\n")


def test_fifty_runs_over_ten_minutes_take_twenty_questions(run_dir: Path, slurm: Slurm) -> None:
    runs = [*many(run_dir, 50)]
    slurm.jobs = {100 + index: job("RUNNING", 100 + index)[100 + index] for index in range(50)}
    for index, run in enumerate(runs):
        slurm.plan.append((12.0 * index + 10, partial(close, run, index % 2, job=100 + index)))
    watch = slurm.watch(*runs)
    found = slurm.all(watch)
    assert [one.run for one in found if one.event == "ended"] == [run.name for run in runs]
    assert [one.exit_code for one in watch.ended] == [0, 1] * 25
    assert 590 < slurm.now < 610
    assert len(slurm.asked) <= 20
    assert all(later - before >= 30 for before, later in zip(slurm.asked, slurm.asked[1:], strict=False))


def test_what_happens_in_a_run(run_dir: Path, slurm: Slurm) -> None:
    slurm.jobs = job("PENDING")
    happens: list[tuple[float, dict[str, object]]] = [
        (5, {"event": "start"}),
        (8, {"event": "stall", "rule": "collective", "rank": "3"}),
        (9, {"event": "requeue", "exit_code": 1}),
        (70, {"event": "start", "restart": 1}),
        (80, {"event": "start", "restart": 2}),
    ]
    slurm.plan = [(when, partial(write, run_dir, **event)) for when, event in happens]
    slurm.plan.append((95, lambda: close(run_dir, 3)))
    found = slurm.all(slurm.watch(run_dir))
    assert [one.event for one in found] == [
        "started", "stalled", "requeued", "started", "requeued", "started", "started", "ended",
    ]  # fmt: skip
    assert found[1].text == "rule collective, rank 3"
    assert (found[-1].state, found[-1].exit_code) == ("FAILED", 3)


def test_a_run_that_ended_before_needs_no_question(run_dir: Path, slurm: Slurm) -> None:
    close(run_dir, 0)
    assert [one.event for one in slurm.all(slurm.watch(run_dir))] == ["ended"]
    assert slurm.asked == []


def test_squeue_fails_for_a_minute(run_dir: Path, slurm: Slurm) -> None:
    slurm.jobs, slurm.down = job("RUNNING"), lambda: 20 < slurm.now < 100
    slurm.plan = [(200, lambda: close(run_dir, 0))]
    assert [one.event for one in slurm.all(slurm.watch(run_dir))] == ["started", "ended"]
    assert len(slurm.said) == 1
    assert "asking again" in slurm.said[0]


def test_a_slow_slurm_is_asked_each_half_minute_also_through_remembered_answers(run_dir: Path, slurm: Slurm) -> None:
    """As for agents. Over ssh a run's record is read with the answer: one that is used again hides an end for a minute."""
    slurm.jobs = job("RUNNING")
    slurm.plan = [(300, lambda: close(run_dir, 0))]

    def slow(name: str) -> dict[JobId, QueuedJob]:
        answer = slurm.queue(name)
        slurm.now += 2.0
        return answer

    recent = RecentQueue(slow, now=slurm.monotonic).about({"local": [[7]]})
    watch = RunsWatch([run_dir], queue=recent, history=slurm.history, say=slurm.said.append, now=slurm.monotonic)
    slurm.all(watch)
    gaps = [later - before for before, later in zip(slurm.asked, slurm.asked[1:], strict=False)]
    assert len(gaps) > 7
    assert all(30 <= gap < 40 for gap in gaps), gaps


@pytest.mark.parametrize("reached", [True, False])
def test_the_mark_of_an_end_over_ssh_is_fetched(
    run_dir: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, reached: bool
) -> None:
    """It comes with a run's files, not with the records of all runs: every end was seen half a minute late."""
    slurm.jobs = job("RUNNING")
    ends = {"event": "end", "exit_code": 3, "epoch": 5.0}
    slurm.plan = [(5, lambda: write(run_dir, **ends)), (5, lambda: slurm.jobs.update(job("FAILED")))]

    def fetch(found: Path) -> None:
        if not reached:
            raise ToolError("the line is down")
        RunPaths(found).closed.write_text("5.0\n")

    monkeypatch.setattr("kit.hosts.clusters.fetch", fetch)
    (end,) = slurm.all(slurm.watch(run_dir))
    assert (end.state, end.exit_code) == ("FAILED", 3)
    assert slurm.asked == ([0.0, 30.0] if reached else [0.0, 30.0, 60.0])


def test_a_slurm_that_is_silent_for_too_long(run_dir: Path, slurm: Slurm) -> None:
    slurm.down = lambda: True
    with pytest.raises(NoAnswerError, match="has not answered for 15 minutes"):
        slurm.all(slurm.watch(run_dir))


def test_the_accounting_knows_how_a_lost_run_ended(run_dir: Path, slurm: Slurm) -> None:
    slurm.known = {
        7: Accounted(
            job_id=7,
            state="TIMEOUT",
            exit_code=1,
            submitted_at=SUBMITTED,
            elapsed_s=60,
            starts=("n1",),
            max_rss=None,
            cpu_s=1.0,
        )
    }
    watch = slurm.watch(run_dir)
    assert [one.state for one in slurm.all(watch)] == ["TIMEOUT"]
    assert slurm.asked == [0.0, 30.0], "the queue, then the accounting in its place"


def test_a_run_that_nobody_knows_is_lost(run_dir: Path, slurm: Slurm) -> None:
    assert [(one.event, one.state) for one in slurm.all(slurm.watch(run_dir))] == [("ended", "LOST")]


def test_a_waiting_run_is_cancelled(run_dir: Path, slurm: Slurm) -> None:
    slurm.jobs = job("PENDING")
    slurm.plan = [(40, lambda: slurm.jobs.update(job("CANCELLED")))]
    assert [one.state for one in slurm.all(slurm.watch(run_dir))] == ["CANCELLED"]


def test_the_first_of_several(run_dir: Path, slurm: Slurm) -> None:
    one, other = many(run_dir, 2)
    slurm.jobs = {**job("RUNNING", 100), **job("RUNNING", 101)}
    slurm.plan = [(5, lambda: close(other, 4, job=101))]
    watch = slurm.watch(one, other)
    slurm.all(watch, first=True)
    assert [ended.run_dir for ended in watch.ended] == [other]
    assert watch.waiting == [one]


def test_a_wait_with_a_limit(run_dir: Path, slurm: Slurm) -> None:
    slurm.jobs = job("RUNNING")
    with pytest.raises(StillRunningError, match="after 20 s not ended: digits-1; the runs continue") as caught:
        slurm.all(slurm.watch(run_dir), timeout=20)
    assert caught.value.exit_code == 9
    assert slurm.now == 20


def test_the_api_waits_beside_other_tasks(run_dir: Path) -> None:
    close(run_dir, 3)

    async def both() -> list[RunEvent]:
        waited = asyncio.create_task(collect())
        await asyncio.sleep(0)
        return await waited

    async def collect() -> list[RunEvent]:
        return [one async for one in kit.watch_runs(run_dir, project=run_dir.parent)]

    assert [(one.run, one.event, one.exit_code) for one in asyncio.run(both())] == [("digits-1", "ended", 3)]
    assert [one.exit_code for one in kit.wait(run_dir, project=run_dir.parent)] == [3]


def test_the_command_ends_with_the_code_of_the_first_bad_run(run_dir: Path) -> None:
    good, bad = many(run_dir, 2)
    close(good, 0)
    close(bad, 5)
    words = ["wait", str(good), str(bad), "--json"]
    done = shell.run([sys.executable, "-m", "kit", *words], cwd=run_dir.parent, check=False)
    assert done.returncode == 5, done.stderr
    assert [json.loads(line)["exit_code"] for line in done.stdout.splitlines()] == [0, 5]
    assert shell.run([sys.executable, "-m", "kit", "wait", str(good)], cwd=run_dir.parent).stdout.endswith(
        f"{good.name} ended: COMPLETED, exit code 0"
    )


def test_a_point_that_a_search_has_stopped_is_no_failure(run_dir: Path) -> None:
    point = run_dir.with_name("lr-1") / "points" / "lr-1.0"
    shutil.copytree(run_dir, point)
    close(point, 143)
    words = [sys.executable, "-m", "kit", "wait", "lr-1", "--runs", str(run_dir.parent)]
    assert shell.run(words, cwd=run_dir.parent, check=False).returncode == 143
    (RunPaths(point).state / "stopped-early.json").write_text("{}")
    assert shell.run(words, cwd=run_dir.parent, check=False).returncode == 0


def test_a_sweep_means_all_its_points(run_dir: Path) -> None:
    sweep = run_dir.with_name("lr-1")
    points = sweep / "points"
    points.mkdir(parents=True)
    for index, code in enumerate((0, 6)):
        shutil.copytree(run_dir, points / f"lr-1.{index}")
        close(points / f"lr-1.{index}", code)
    close(run_dir, 0)
    for name in ("lr-1", str(sweep)):
        words = ["wait", name, str(run_dir), str(points / "lr-1.1"), "--runs", str(run_dir.parent), "--json"]
        done = shell.run([sys.executable, "-m", "kit", *words], cwd=run_dir.parent, check=False)
        assert done.returncode == 6, done.stderr
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert [(one["run"], one["exit_code"]) for one in found] == [("lr-1.0", 0), ("lr-1.1", 6), (run_dir.name, 0)]
    assert [one.exit_code for one in kit.wait(kit.SweepRun(sweep), project=run_dir.parent)] == [0, 6]
