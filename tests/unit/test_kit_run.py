"""kit run: the job that it makes, what it asks for, and what it keeps. On a Slurm: tests/cluster/test_outputs.py."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit import config, shell
from kit.cli import offers, run, submit
from kit.errors import ConfigError, ImageError, SlurmError, UsageError
from kit.health import next_command
from kit.health.answer import SUBMIT, Answer
from kit.record.manifest import BY_KIT_RUN
from kit.submission.prepare_run import Prepared, prepare_job
from kit.workflow import first_job
from tests.unit.test_first_job import _own_folders, kit, project

__all__ = ["_own_folders", "project"]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, project: Path) -> list[Prepared]:
    """The jobs that were given to the code of kit submit; nothing is missing."""
    found: list[Prepared] = []

    def taken(asked: Any, after: list[str], *, as_json: bool, say_how: bool) -> list[Path]:
        found.append(asked)
        return [Path("run")]

    monkeypatch.chdir(project)
    monkeypatch.setattr(submit, "submit_asked", taken)
    monkeypatch.setattr("kit.cli.wait_and_follow.follow_run", lambda folder: None)
    monkeypatch.setattr(offers, "on_terminal", lambda: False)
    monkeypatch.setattr(run, "_require_all", lambda job, place, containers: None)
    return found


def test_a_job_without_a_file_is_what_a_submit_of_the_saved_file_plans(project: Path, sent: list[Prepared]) -> None:
    chosen: dict[str, Any] = {
        "nodes": 2,
        "gpus": 4,
        "time": "00:05:00",
        "cluster": "pod",
        "set_": ["env.A=1"],
        "containers": False,
    }
    run.run(Path("train.py"), ["--lr", "0.1"], **chosen)
    assert not (project / "job.toml").exists()
    run.run(Path("train.py"), ["--lr", "0.1"], **chosen, save=Path("job.toml"))
    again = prepare_job(project / "job.toml", cluster="pod", overrides=[], containers=False)
    job = again.resolved.job
    assert [one.resolved.job for one in sent] == [job, job]
    assert (job.args, job.env["A"], job.script) == (("--lr", "0.1"), "1", "train.py")
    assert (job.resources.nodes, job.resources.gpus_per_node, job.resources.time) == (2, 4, "00:05:00")
    assert [one.job_file.name for one in sent] == [BY_KIT_RUN, "job.toml"]


def test_the_shape_is_that_of_a_first_job(project: Path, sent: list[Prepared]) -> None:
    run.run(Path("train.py"), containers=False)
    found = sent[0].resolved.job.resources
    assert (found.nodes, found.gpus_per_node, found.time) == (2, 2, "00:30:00")


def test_a_program_elsewhere_has_its_own_folder(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    assert first_job.folder_of(Path("sub/../train.py")) == (project, Path("train.py"))
    assert first_job.folder_of(Path("src/fit.py")) == (project, Path("src/fit.py"))
    assert first_job.folder_of(Path("../other/fit.py")) == (tmp_path / "other", Path("fit.py"))


def test_ranks_without_a_container_have_the_python_of_this_shell(
    project: Path, sent: list[Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/home/ada/venv")
    run.run(Path("train.py"), containers=False)
    assert sent[0].resolved.job.python == "/home/ada/venv/bin/python"


def test_what_is_wrong_is_refused_and_nothing_is_written(project: Path, sent: list[Prepared]) -> None:
    with pytest.raises(UsageError, match=r"nope\.py: no such file"):
        run.run(Path("nope.py"), containers=False)
    with pytest.raises(ConfigError, match=r"kit run: resources\.time"):
        run.run(Path("train.py"), containers=False, time="soon")
    with pytest.raises(ConfigError, match=r"kit run: resources\.time"):
        run.run(Path("train.py"), containers=False, time="soon", save=Path("job.toml"))
    assert not (project / "job.toml").exists()
    with pytest.raises(UsageError, match="the paths of a job start at its file"):
        run.run(Path("train.py"), containers=False, save=Path("data/job.toml"))
    (project / "job.toml").write_text("mine\n")
    with pytest.raises(UsageError, match="exists already"):
        run.run(Path("train.py"), containers=False, save=Path("job.toml"))
    assert (project / "job.toml").read_text() == "mine\n"
    assert sent == []


def test_without_a_terminal_one_error_names_all_that_is_missing_and_the_line(project: Path) -> None:
    done = kit("run", "train.py", "--nodes", "1", "--", "--lr", "a b", cwd=project)
    assert done.returncode == SlurmError.exit_code
    assert "cluster 'local' is not up, and image 'train-cpu' is not built, and there is no terminal" in done.stderr
    assert "try: kit run --yes train.py --nodes 1 -- --lr 'a b'" in done.stderr
    assert sorted(path.name for path in project.iterdir()) == ["data", "train.py"]
    done = kit("run", "train.py", "-c", "pod", cwd=project)
    assert (done.returncode, "cluster" in done.stderr) == (ImageError.exit_code, False)
    done = kit("run", "train.py", "--no-container", cwd=project)
    assert (done.returncode, "image" in done.stderr) == (SlurmError.exit_code, False)


def test_options_after_the_dashes_are_the_programs(project: Path) -> None:
    words = ["run", "train.py", "--no-container", "-c", "pod", "--save", "kept.toml", "--", "--nodes", "7", "--yes"]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(project.parent)}
    shell.run([sys.executable, "-m", "kit", *words], cwd=project, env=env, check=False)
    job = tomllib.loads((project / "kept.toml").read_text())
    assert (job["args"], job["resources"]["nodes"]) == (["--nodes", "7", "--yes"], 1)


@pytest.mark.parametrize(
    ("line", "name", "shown"),
    [
        (SUBMIT, BY_KIT_RUN, "kit rerun digits-1"),
        (f"{SUBMIT} --set slurm.exclude=n1", BY_KIT_RUN, "kit rerun digits-1 --set slurm.exclude=n1"),
        (f"{SUBMIT} --debug", "Job(...)", "kit rerun digits-1"),
        ("kit render {job_file}", BY_KIT_RUN, "kit logs digits-1 --tail 50"),
        (SUBMIT, "job.toml", "kit submit /x/job.toml"),
    ],
)
def test_the_next_command_of_a_run_without_a_job_file(line: str, name: str, shown: str) -> None:
    """kit submit of a file that was never written fails."""

    class Known:
        run_dir = Path("/runs/digits-1")
        values: dict[str, object] = {"job_file": f"/x/{name}"}  # noqa: RUF012
        status = SimpleNamespace(manifest=SimpleNamespace(set_by=()))

    record: Any = Known()
    given = Answer(rule="x", verdict="try again", line="", advice="", next=line.format(job_file=f"/x/{name}"))
    assert next_command.for_run(record, given) == replace(given, next=shown)


def test_the_saved_file_is_toml_whatever_the_words_are(project: Path, sent: list[Prepared]) -> None:
    words = ['say "hi"', "a\\b", "x\ny", "ü😀", ""]
    run.run(Path("train.py"), words, containers=False, save=Path("job.toml"))
    assert config.load_job(project / "job.toml", cluster=None).job.args == tuple(words)
