"""kit prune-runs: what is chosen, what stays and why, and what a kill in the middle leaves."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kit import data_folders
from kit.archive import prune
from kit.archive.prune import Wish
from kit.cli import prune_runs, wait_and_follow
from kit.errors import RunError
from kit.hosts import status
from kit.record import find_runs, manifest
from kit.schema.run_paths import RunPaths
from kit.slurm.client import JobId, QueuedJob
from tests.support import make_site, plan_of, write_job

DAY = 24 * 3600.0
NOW = datetime(2026, 11, 28, tzinfo=UTC).timestamp()
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes the folder of a run that ended `days` days ago, with `size` bytes of logs."""
    job = write_job(tmp_path, 'name = "digits"\nlauncher = "ddp"\n[container]\nruntime = "bare"\n')
    template = tmp_path / "template"
    made = manifest.make_manifest(
        plan_of(job, site=make_site(run_dir=template, containers=False)),
        job_file=job,
        user="ada",
        now=datetime(2026, 1, 1, tzinfo=UTC),
        slurm_version="22.05",
    )

    def run(
        number: int,
        days: float,
        *,
        code: int | None = 0,
        name: str = "digits",
        size: int = 0,
        says: str = "",
        under: str = "",
    ) -> Path:
        folder = tmp_path / "runs" / under / f"{name}-20261101-0000{number:02}-00{number:02}"
        (folder / "state").mkdir(parents=True)
        ended = NOW - days * DAY
        job_id = 1000 + number
        made.model_copy(
            update={
                "run_id": folder.name,
                "job_name": name,
                "job_id": job_id,
                "job_file": says or made.job_file,
                "submitted_at": datetime.fromtimestamp(ended - 60, UTC),
            }
        ).write(RunPaths(folder).manifest)
        lines = [{"event": "start", "job_id": str(job_id), "nodes": "n1", "restart": "0", "epoch": str(ended - 30)}]
        if code is not None:
            lines.append({"event": "end", "exit_code": str(code), "epoch": str(ended)})
        RunPaths(folder).events.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        (folder / "logs").mkdir()
        (folder / "logs" / "rank-0.log").write_bytes(b"x" * size)
        return folder

    return run


def chosen(runs: Path, wish: Wish, queue: Mapping[JobId, QueuedJob] | None = None) -> list[prune.OldRun]:
    found = status.of_facts(find_runs.find_all([runs]), queue=lambda cluster: queue or {}, folder_first=False)
    return prune.choose(found, wish, now=NOW)


def names(found: list[prune.OldRun]) -> list[str]:
    return [one.folder.name for one in found if not one.kept]


def test_by_age_state_size_and_number(make: Make, tmp_path: Path) -> None:
    old, young, failed, large = make(1, 40), make(2, 2), make(3, 50, code=1), make(4, 60, size=3_000_000)
    runs = tmp_path / "runs"
    assert names(chosen(runs, Wish(older_than=30))) == [large.name, failed.name, old.name]
    assert names(chosen(runs, Wish(older_than=30, states=["FAILED"]))) == [failed.name]
    assert names(chosen(runs, Wish(larger_than=2e6))) == [large.name]
    # The newest of each job, whatever became of them.
    other = make(5, 90, name="other")
    assert names(chosen(runs, Wish(keep_last=1))) == [large.name, failed.name, old.name]
    assert names(chosen(runs, Wish(keep_last=3))) == [large.name]
    assert young.exists()
    assert other.exists()


def test_what_may_run_stays(make: Make, tmp_path: Path) -> None:
    """A job of Slurm's queue, one whose submission is open, one without a readable manifest, and one of another cluster's queue."""
    active, open_one, damaged, lost = make(1, 40), make(2, 40), make(3, 40), make(4, 40, code=None)
    RunPaths(open_one).submission.write_text("{}")
    RunPaths(damaged).manifest.write_text("{")
    job = QueuedJob(job_id=1001, state="RUNNING", reason="", nodes="n1", elapsed="1:00")
    assert names(chosen(tmp_path / "runs", Wish(older_than=1), {1001: job})) == [lost.name]
    found = status.of_facts(find_runs.find_all([tmp_path / "runs"]), queue=lambda cluster: None, folder_first=False)
    assert lost.name not in names(prune.choose(found, Wish(older_than=1), now=NOW))
    assert active.exists()


def test_runs_of_others_stay(make: Make, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    run = make(1, 40)
    os.chown(run, 12345, 12345)
    assert chosen(tmp_path / "runs", Wish()) == []


def test_a_sweep_is_removed_whole_or_not_at_all(make: Make, tmp_path: Path) -> None:
    sweep = tmp_path / "runs" / "digits-20261101-120000-abcd"
    points = [make(number, 40, under=f"{sweep.name}/points", code=number % 2) for number in (1, 2, 3)]
    (sweep / "sweep.json").write_text("{}")
    runs = tmp_path / "runs"
    assert chosen(runs, Wish(states=["FAILED"])) == []
    (one,) = chosen(runs, Wish(older_than=30))
    assert (one.folder, one.states) == (sweep, ("FAILED", "COMPLETED"))
    with RunPaths(points[1]).events.open("a") as events:
        events.write(
            json.dumps({"event": "start", "job_id": "1002", "epoch": str(NOW - 3600), "nodes": "n1", "restart": "1"})
            + "\n"
        )
    assert chosen(runs, Wish(older_than=30)) == []


def test_what_a_kept_run_names_stays(make: Make, tmp_path: Path) -> None:
    """And what that one names: the young rerun is kept, so its source is, so the source's own checkpoint is."""
    first = make(1, 90)
    second = make(2, 60, says=f"/project/runs/{first.name}/checkpoints")
    third = make(3, 1, says=f"rerun of {second.name}")
    runs = tmp_path / "runs"
    found = {one.folder: one for one in chosen(runs, Wish(older_than=30))}
    assert found[second].kept == f"{third.name} names it"
    assert found[first].kept == f"{second.name} names it"
    assert names(chosen(runs, Wish(older_than=30, referenced=True))) == [first.name, second.name]
    assert chosen(runs, Wish(older_than=30, referenced=True))[1].named_by == third.name
    # Together they may go.
    assert names(chosen(runs, Wish())) == [first.name, second.name, third.name]


def test_removal(make: Make, tmp_path: Path) -> None:
    """Folders that nobody may write to go, too; what links lead to stays; a run that was resumed meanwhile stays."""
    run, again = make(1, 40), make(2, 39)
    library = run / "lib"
    library.mkdir()
    (library / "part.sh").write_text("")
    library.chmod(0o555)
    outside = tmp_path / "data"
    outside.mkdir()
    (outside / "kept").write_text("")
    (run / "link").symlink_to(outside)
    found = chosen(tmp_path / "runs", Wish(older_than=30))
    RunPaths(again).submission.write_text("{}")
    done: list[prune.OldRun] = []
    problems = prune.remove(found, done=done.append)
    assert [one.folder for one in done] == [run]
    assert problems == [f"{again} has changed since it was listed"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [again.name]
    assert (outside / "kept").exists()


def test_a_kill_in_the_middle_leaves_no_half_of_a_run(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(1, 40, size=10)
    runs = tmp_path / "runs"

    def killed(path: Path) -> None:
        (path / "manifest.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            prune.remove(chosen(runs, Wish()), done=lambda one: None)
    assert find_runs.find_all([runs]) == []
    assert [*runs.iterdir()] != []
    prune.finish([runs, tmp_path / "nothing"])
    assert [*runs.iterdir()] == []


@pytest.fixture
def command(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """The command, in a project whose runs are under tmp_path/runs, on a machine whose Slurm knows no job."""
    monkeypatch.setattr(wait_and_follow, "queue", lambda: lambda cluster: {})
    monkeypatch.setattr(data_folders, "project", lambda: tmp_path)
    monkeypatch.setattr(find_runs, "folders", lambda project: [project / "runs"])
    app = typer.Typer()
    app.command()(prune_runs.prune_runs)
    return app


def test_the_command_removes_only_with_yes(command: typer.Typer, make: Make) -> None:
    run = make(1, 4000, size=2_000_000)
    shown = CliRunner().invoke(command, ["--older-than", "30"])
    assert shown.exit_code == 0
    assert run.name in shown.stdout
    assert "nothing was removed" in shown.stderr
    assert run.exists()
    assert CliRunner().invoke(command, ["--older-than", "30", "--yes", "--dry-run"]).exit_code == 0
    assert run.exists()
    done = CliRunner().invoke(command, ["--older-than", "30", "--yes", "--json"])
    answer = json.loads(done.stdout)
    assert [one["folder"] for one in answer["removed"]] == [str(run)]
    assert answer["removed"][0]["bytes"] > 2_000_000
    assert not run.exists()


def test_a_folder_that_cannot_be_removed_is_named(
    command: typer.Typer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make(1, 4000), make(2, 3000)
    real = shutil.rmtree

    def refused(path: Path) -> None:
        if first.name in path.name:
            raise PermissionError(1, "Operation not permitted", str(path))
        real(path)

    monkeypatch.setattr(shutil, "rmtree", refused)
    done = CliRunner().invoke(command, ["--older-than", "30", "--yes"])
    assert isinstance(done.exception, RunError)
    assert "Operation not permitted" in done.exception.message
    assert not second.exists()


def test_without_a_choice_nothing_is_listed(command: typer.Typer) -> None:
    done = CliRunner().invoke(command, ["--yes"])
    assert getattr(done.exception, "exit_code", None) == 2
