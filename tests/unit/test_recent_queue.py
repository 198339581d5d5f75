"""A server that is asked again and again asks Slurm twice a minute at most."""

from __future__ import annotations

from kit.hosts.recent_queue import RecentQueue
from kit.slurm.client import JobId, QueuedJob


def job(number: JobId) -> dict[JobId, QueuedJob]:
    return {number: QueuedJob(job_id=number, state="RUNNING", reason="None", nodes="n1", elapsed="1:00")}


class Slurm:
    def __init__(self) -> None:
        self.now, self.asked = 0.0, 0
        self.jobs: dict[JobId, QueuedJob] | None = {**job(1), **job(2)}
        self.recent = RecentQueue(self.answer, now=lambda: self.now)

    def answer(self, _: str) -> dict[JobId, QueuedJob] | None:
        self.asked += 1
        return self.jobs

    def questions(self, *runs: list[JobId], times: int = 1) -> int:
        before = self.asked
        for _ in range(times):
            self.recent.about({"c": runs})("c")
        return self.asked - before


def test_fifty_waits_over_ten_minutes_are_twenty_questions() -> None:
    slurm = Slurm()
    for number in range(50):
        slurm.now = 12.0 * number
        slurm.questions([1], [2], times=3)
    assert slurm.asked <= 20


def test_a_run_that_the_answer_does_not_have_is_asked_about() -> None:
    slurm = Slurm()
    assert slurm.questions([1], times=5) == 1
    assert slurm.questions([3]) == 1, "it may be newer than the answer"
    assert slurm.questions([9, 2]) == 0, "a chain has one of its jobs there"
    assert slurm.questions([]) == 1, "its job is not known yet"


def test_no_answer_is_not_remembered() -> None:
    slurm = Slurm()
    slurm.jobs = None
    assert slurm.questions([1], times=2) == 2
