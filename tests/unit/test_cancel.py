"""Whom a cancel asks: a batch script that has begun, and Slurm where there is none that answers (A5)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kit.cli import port_notebook
from kit.errors import RunError
from kit.hosts import status
from kit.hosts.local import LocalHost
from kit.hosts.status import Status
from kit.record import manifest, secret
from kit.schema.run_paths import RunPaths
from kit.sessions import stacks
from kit.slurm.client import QueuedJob
from kit.submission import cancel, interactive
from tests.support import make_site, plan_of, write_job

Told = list[str]


@pytest.fixture
def run(tmp_path: Path) -> Status:
    """A run of job 7, which Slurm says is RUNNING."""
    job = write_job(tmp_path, 'name = "digits"\nlauncher = "ddp"\n[container]\nruntime = "bare"\n')
    folder = tmp_path / "runs" / "digits-1"
    (folder / "state").mkdir(parents=True)
    made = plan_of(job, site=make_site(run_dir=folder, containers=False))
    of = manifest.make_manifest(
        made, job_file=job, user="ada", now=datetime(2026, 11, 21, tzinfo=UTC), slurm_version="22.05"
    )
    of.model_copy(update={"job_id": 7}).write(RunPaths(folder).manifest)
    queued = QueuedJob(job_id=7, state="RUNNING", reason="", nodes="n1", elapsed="1:00")
    (found,) = status.read_statuses([folder], queue=lambda cluster: {7: queued})
    return found


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What Slurm is told; nothing waits."""
    said: Told = []

    def tell(*jobs: object, env: object, gently: bool = False) -> None:
        said.append("gently" if gently else "at once")

    monkeypatch.setattr("kit.submission.cancel.client.cancel", tell)
    monkeypatch.setattr("kit.submission.cancel._NOTED_S", 0.0)
    return said


def record(run: Status, *events: str) -> None:
    lines = (
        json.dumps({"event": event, "name": "TERM", "job_id": "7", "restart": "0", "nodes": "n1"}) + "\n"
        for event in events
    )
    with RunPaths(run.run_dir).events.open("a") as file:
        file.writelines(lines)


def test_c18_a_run_of_another_user_is_not_cancelled(run: Status, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its manifest can name any job, such as one of whoever cancels it."""
    monkeypatch.setattr("os.geteuid", lambda: run.run_dir.stat().st_uid + 1)
    with pytest.raises(RunError, match="only its owner can cancel its job"):
        cancel.cancel([run], host=LocalHost(name="local"))
    assert told == []


def test_c18_no_shell_server_or_look_at_ranks_of_another_users_run(
    run: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run words of its manifest and programs of its folder, in a job that it names: perhaps one of whoever looks."""
    ran: list[object] = []
    monkeypatch.setattr("kit.shell.call", lambda *words, **_: ran.append(words))
    monkeypatch.setattr("kit.shell.run", lambda *words, **_: ran.append(words))
    monkeypatch.setattr("kit.cli.runs.find", lambda _: run)
    record(run, "start", "attempt")
    monkeypatch.setattr("os.geteuid", lambda: run.run_dir.stat().st_uid + 1)
    with pytest.raises(RunError, match="only its owner can open a shell in it"):
        interactive.attach(run, node=None)
    with pytest.raises(RunError, match="only its owner can start a step in it"):
        port_notebook.notebook()
    with pytest.raises(RunError, match="only its owner can start a step in it"):
        port_notebook.port(run.run_dir.name, "80")
    with pytest.raises(RunError, match="only its owner can look at its ranks"):
        stacks.gather(run, rank=None)
    assert ran == []


def test_a5_a_script_that_has_not_begun_cannot_be_asked(run: Status, told: Told) -> None:
    """A slow prolog: Slurm says RUNNING, and a signal to the batch script is lost."""
    cancel.cancel([run], host=LocalHost(name="local"))
    assert told == ["at once"]
    record(run, "start", "signal", "requeue")
    cancel.cancel([run], host=LocalHost(name="local"))
    assert told == ["at once"] * 2, "of the start after a requeue there is no record either"


@pytest.mark.parametrize("state", ["PENDING", "CONFIGURING", "RUNNING", "REQUEUED", "SUSPENDED"])
@pytest.mark.parametrize("requeued", [False, True])
def test_c19_a_script_that_has_not_begun_leaves_no_secrets(
    run: Status, told: Told, state: str, *, requeued: bool
) -> None:
    """Only those of a run that Slurm called PENDING were removed: one that waits for a node to boot, or its prolog, kept them."""
    for name in (secret.FILE, secret.URLS_FILE):
        (run.run_dir / name).write_text("export KEY=value\n")
    if requeued:
        record(run, "start", "signal", "requeue")
    waits = replace(run, state=state)
    assert waits.active
    cancel.cancel([waits], host=LocalHost(name="local"))
    assert told == ["at once"]
    assert not (run.run_dir / secret.FILE).exists()
    assert not (run.run_dir / secret.URLS_FILE).exists()


def test_c19_a_run_that_waits_after_its_node_was_lost_leaves_no_secrets(run: Status, told: Told) -> None:
    """Its last start recorded no end."""
    (run.run_dir / secret.FILE).write_text("export KEY=value\n")
    record(run, "start")
    cancel.cancel([replace(run, state="PENDING")], host=LocalHost(name="local"))
    assert (told, (run.run_dir / secret.FILE).exists()) == (["at once"], False)


def test_c19_ranks_that_save_keep_their_secrets(run: Status, told: Told) -> None:
    (run.run_dir / secret.FILE).write_text("export KEY=value\n")
    record(run, "start")
    cancel.cancel([run], host=LocalHost(name="local"))
    assert (run.run_dir / secret.FILE).exists(), "the batch script removes them at its end"


def test_a5_a_script_that_does_not_answer_is_ended_by_slurm(
    run: Status, told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    record(run, "start")
    cancel.cancel([run], host=LocalHost(name="local"))
    assert told == ["gently", "at once"]
    assert "digits-1: its batch script does not answer; Slurm ends the job" in capsys.readouterr().err


@pytest.mark.parametrize("answer", ["signal", "end"])
def test_a5_a_script_that_answers_is_left_alone(
    run: Status, told: Told, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kit.submission.cancel._NOTED_S", 30.0)
    slept: Callable[[float], None] = lambda _seconds: record(run, answer)  # noqa: E731
    monkeypatch.setattr("kit.submission.cancel.time.sleep", slept)
    record(run, "start")
    cancel.cancel([run], host=LocalHost(name="local"))
    assert told == ["gently"]


def test_who_was_asked_before_is_ended(run: Status, told: Told) -> None:
    record(run, "start", "signal")
    cancel.cancel([run], host=LocalHost(name="local"))
    assert told == ["at once"]
