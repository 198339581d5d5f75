"""States of runs that Slurm has forgotten, read from the run folder."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kit import shell
from kit.hosts import status
from kit.record import manifest, run_facts
from kit.schema.run_paths import RunPaths
from kit.shell import Completed
from kit.slurm.client import JobId, QueuedJob
from tests.support import make_site, plan_of, write_job

SUBMITTED = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of job 7, submitted at noon, without any record of its own."""
    job = write_job(tmp_path, 'name = "digits"\nlauncher = "ddp"\n[container]\nruntime = "bare"\n')
    folder = tmp_path / "runs" / "digits-1"
    (folder / "state").mkdir(parents=True)
    made = plan_of(job, site=make_site(run_dir=folder, containers=False))
    of = manifest.make_manifest(made, job_file=job, user="ada", now=SUBMITTED, slurm_version="22.05")
    of.model_copy(update={"job_id": 7}).write(RunPaths(folder).manifest)
    return folder


def state(run_dir: Path) -> str:
    (found,) = status.read_statuses([run_dir], queue=lambda cluster: {})
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
    assert manifest.read_manifest(RunPaths(run_dir).manifest).image_name == "train-cpu"
    assert run_facts.read_facts(run_dir).image_name is None


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
    monkeypatch.setattr("kit.hosts.status.time", clock)
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
    (found,) = status.read_statuses([run_dir], queue=lambda cluster: ended)
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
    (found,) = status.read_statuses([run_dir], queue=lambda cluster: ended)
    assert found.exit_code is None
    assert "it recorded no end" in found.reason


OTHER_UID = 54321


class Controller:
    """The answers of a Slurm with one job of another user. hidden: the value of PrivateData."""

    def __init__(self, job: str, *, hidden: str = "none") -> None:
        self.job, self.hidden, self.asked = job, hidden, list[tuple[str, ...]]()

    def run(self, argv: Sequence[str], **_options: object) -> Completed:
        self.asked.append(tuple(argv))
        if argv[0] == "scontrol":
            return Completed(
                argv=tuple(argv), returncode=0, stdout=f"PrivateData             = {self.hidden}", stderr=""
            )
        shown = f"--jobs={self.job}" in argv
        error = "" if shown else "slurm_load_jobs error: Invalid job id specified"
        text = f"kit|{self.job}|N/A|RUNNING|n1|1:00|None" if shown else ""
        return Completed(argv=tuple(argv), returncode=int(not shown), stdout=text, stderr=error)


@pytest.fixture
def of_another(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same run, which another user owns: this one has a secret in it, and was submitted long ago."""
    (run_dir / ".secrets").write_text("export KEY=value\n")
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_UID)
    monkeypatch.setattr("kit.slurm.run_local_or_ssh.uid", lambda _env: str(OTHER_UID))
    return run_dir


def _asked(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.slurm.run_local_or_ssh.run", controller.run)
    monkeypatch.setattr("kit.hosts.local.LocalHost.is_up", lambda _host: True)


def test_a_colleagues_running_job_is_asked_for_by_its_number(of_another: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller("7")
    _asked(controller, monkeypatch)
    assert state(of_another) == "RUNNING"
    (argv,) = controller.asked
    assert {"--jobs=7", f"--user={of_another.stat().st_uid}"} <= set(argv)
    assert (of_another / ".secrets").exists()


@pytest.mark.parametrize(("hidden", "expected"), [("none", "LOST"), ("jobs,usage", "UNKNOWN"), ("all", "UNKNOWN")])
def test_a_colleagues_run_is_lost_only_where_slurm_shows_all_jobs(
    of_another: Path, monkeypatch: pytest.MonkeyPatch, hidden: str, expected: str
) -> None:
    _asked(Controller("8", hidden=hidden), monkeypatch)
    assert state(of_another) == expected
    assert (of_another / ".secrets").exists(), "a look removes nothing of another user's"


def test_a_colleagues_run_on_a_cluster_that_cannot_be_asked_is_unknown(
    of_another: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kit.hosts.local.LocalHost.is_up", lambda _host: False)
    (found,) = status.read_statuses([of_another], queue=lambda _cluster: {})
    assert found.state == "UNKNOWN"
    assert "does not show you" in found.reason


def test_an_own_runs_left_secret_is_removed(run_dir: Path) -> None:
    (run_dir / ".secrets").write_text("export KEY=value\n")
    assert state(run_dir) == "LOST"
    assert not (run_dir / ".secrets").exists()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_one_run_that_cannot_be_read_ends_no_list(run_dir: Path, tmp_path: Path) -> None:
    """A closed state/, a closed run folder, and links in a circle and into a closed folder, as another user sees them."""
    runs = run_dir.parent
    for name in ("closed-state", "closed"):
        shutil.copytree(run_dir, runs / name)
    (runs / "closed-state/state").chmod(0o700)
    (runs / "closed").chmod(0o700)
    (runs / "circle").symlink_to("circle")
    (runs / "inside").symlink_to("closed/state")
    program = (
        "import os, sys, pathlib, pydantic_core\n"
        "from kit.record import index, foreign_runs\n"
        "index.runs(pathlib.Path(sys.argv[1])); os.seteuid(65534)\n"
        "found = {path.name: one.problem for path, one in index.runs(pathlib.Path(sys.argv[1]))}\n"
        "print(sorted(found), bool(found['closed']), foreign_runs.hides_its_record(pathlib.Path(sys.argv[1], 'closed-state')))"
    )
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    done = shell.run(["env", "XDG_CACHE_HOME=/nonexistent", sys.executable, "-c", program, str(runs)])
    assert done.stdout == "['closed', 'closed-state', 'digits-1'] True True"
