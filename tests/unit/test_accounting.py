"""Reads sacct's answers about jobs, and adds them to the status of runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kit import shell
from kit.errors import ToolError
from kit.hosts import from_accounting, status
from kit.slurm import accounting
from kit.slurm.accounting import Accounted
from kit.slurm.client import JobId
from tests.unit.test_status import SUBMITTED, run_dir

__all__ = ["run_dir"]

# What Slurm 22.05 printed of a job that was requeued once, an array, and a job that was cancelled while it waited.
SACCT = """\
2|REQUEUED|0:0|2|t-[1-2]||00:00.256|1763802297
2.batch|CANCELLED|0:15|3|t-1||00:00.002|1763802298
2.0|CANCELLED|0:15|3|t-[1-2]||00:00.254|1763802298
2|COMPLETED|0:0|9|t-[1,3]||1-00:00:01|1763802301
2.batch|COMPLETED|0:0|9|t-1|12697600|00:00.011|1763802325
2.0|COMPLETED|0:0|9|t-[1,3]|73838592|00:00.257|1763802325
3_1|FAILED|7:0|1|t-1||00:01.500|1763802400
4|CANCELLED by 1000|0:0|0|None assigned||00:00:00|1763802500
5_[2-9]|PENDING|0:0|0|None assigned||00:00:00|1763802500
6|NODE_FAIL|0:9|5|t-2||00:00:00|1763802500"""


def test_a_job_is_all_its_starts_together() -> None:
    found = accounting.parse(SACCT)
    assert set(found) == {2, "3_1", 4, 6}
    assert found[2] == Accounted(
        job_id=2,
        state="COMPLETED",
        exit_code=0,
        submitted_at=datetime.fromtimestamp(1763802297, UTC),
        starts=("t-[1-2]", "t-[1,3]"),
        elapsed_s=11,
        cpu_s=86401.256,
        max_rss=73838592,
    )


@pytest.mark.parametrize(
    ("job", "state", "code", "starts"), [("3_1", "FAILED", 7, 1), (4, "CANCELLED", 0, 0), (6, "NODE_FAIL", 137, 1)]
)
def test_how_a_job_ended(job: JobId, state: str, code: int, starts: int) -> None:
    one = accounting.parse(SACCT)[job]
    assert (one.state, one.exit_code, len(one.starts), one.max_rss) == (state, code, starts, None)


@pytest.mark.parametrize(
    ("text", "seconds"), [("00:00.256", 0.256), ("01:02:03", 3723), ("2-00:00:01", 172801), ("", 0)]
)
def test_cpu_time_in_seconds(text: str, seconds: float) -> None:
    assert accounting.seconds(text) == seconds


def test_all_jobs_are_asked_about_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []

    def answer(argv: Sequence[str], **_: object) -> shell.Completed:
        asked.append(argv)
        return shell.Completed(argv=tuple(argv), returncode=0, stdout=SACCT, stderr="")

    monkeypatch.setattr(shell, "run", answer)
    assert set(accounting.history([2, 4, 99], env={})) == {2, 4}
    assert len(asked) == 1
    assert "--jobs=2,4,99" in asked[0]
    assert accounting.history([], env={}) == {}
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        ("Slurm accounting storage is disabled", []),
        ("Connection refused", ["accounting does not answer: sacct: exit code 1\n  Connection refused"]),
    ],
)
def test_a_cluster_without_accounting_knows_nothing(
    monkeypatch: pytest.MonkeyPatch, stderr: str, said: list[str]
) -> None:
    def refuse(argv: Sequence[str], **_: object) -> shell.Completed:
        return shell.Completed(argv=tuple(argv), returncode=1, stdout="", stderr=stderr)

    monkeypatch.setattr(shell, "run", refuse)
    heard: list[str] = []
    assert accounting.history([2], env={}, say=heard.append) == {}
    assert heard == said


def test_accounting_that_hangs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(argv: Sequence[str], **_: object) -> shell.Completed:
        raise ToolError("sacct: no answer within 20 s")

    monkeypatch.setattr(shell, "run", hang)
    heard: list[str] = []
    assert accounting.history([2], env={}, say=heard.append) == {}
    assert heard == ["accounting does not answer: sacct: no answer within 20 s"]


def entry(*, submitted_at: datetime = SUBMITTED) -> Accounted:
    return Accounted(
        job_id=7,
        state="NODE_FAIL",
        exit_code=137,
        submitted_at=submitted_at,
        starts=("n1", "n[2-3]"),
        elapsed_s=3723,
        cpu_s=60.4,
        max_rss=2**30,
    )


def test_a_lost_run_is_what_accounting_says(run_dir: Path) -> None:
    asked: list[tuple[str, list[JobId]]] = []

    def ask(cluster: str, jobs: Sequence[JobId]) -> dict[JobId, Accounted]:
        asked.append((cluster, list(jobs)))
        return {7: entry()}

    (lost,) = status.read_statuses([run_dir], queue=lambda cluster: {})
    (found,) = from_accounting.add([lost], ask=ask)
    assert (lost.state, found.state, found.exit_code) == ("LOST", "NODE_FAIL", 137)
    assert (found.nodes, found.elapsed, found.restarts) == ("n[2-3]", "1:02:03", 1)
    assert asked == [("local", [7])]
    assert from_accounting.facts(found.accounted) == {
        "max_rss": "1024 MiB",
        "cpu_time": "0:01:00",
        "nodes_by_start": ["n1", "n[2-3]"],
    }


def test_another_job_of_the_same_number_is_not_taken(run_dir: Path) -> None:
    (lost,) = status.read_statuses([run_dir], queue=lambda cluster: {})
    later = entry(submitted_at=SUBMITTED + timedelta(hours=1))
    assert from_accounting.add([lost], ask=lambda cluster, jobs: {7: later}) == [lost]
    assert from_accounting.add([lost], ask=lambda cluster, jobs: {}) == [lost]
