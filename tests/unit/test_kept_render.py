"""`kit render` answers again without planning, as long as nothing changed that the answer was made from."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kit import shell
from kit.cli import kept_render
from kit.cli import render as command
from kit.runs import known_files, traced_inputs
from kit.workflow import stages

JOB = 'name = "once"\nlauncher = "ddp"\nscript = "train.py"\nsnapshot = true\n[container]\nruntime = "bare"\n'
Render = Callable[..., tuple[str, int]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in a git repository, whose files count as settled at once."""
    folder = tmp_path / "project"
    (folder / "clusters").mkdir(parents=True)
    (folder / "clusters" / "here.toml").write_text("embedded = true\n[node]\ncpus = 4\n")
    (folder / "job.toml").write_text(JOB)
    (folder / "train.py").write_text("")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    for name in ("CACHE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(traced_inputs, "_SETTLED_S", -60.0)
    monkeypatch.setattr(kept_render, "_OF_THE_SHELL", ("_", "PYTEST_CURRENT_TEST"))
    return folder


@pytest.fixture
def render(project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Render:
    """Renders, and returns the text and how often the job was planned for it."""
    planned: list[int] = []
    real = stages.prepare_job

    def counted(*words: Any, **more: Any) -> Any:
        planned.append(1)
        return real(*words, **more)

    monkeypatch.setattr(stages, "prepare_job", counted)

    def rendered(*set_: str, as_json: bool = False) -> tuple[str, int]:
        planned.clear()
        capsys.readouterr()
        command.render(Path("job.toml"), cluster="here", containers=False, set_=list(set_), as_json=as_json)
        return capsys.readouterr().out, len(planned)

    rendered()
    return rendered


def drawn(text: str) -> tuple[str, str]:
    """The run's id and its seed."""
    runs, seeds = set(re.findall(r"once-\d{8}-\d{6}-[0-9a-f]{4}", text)), set(re.findall(r"KIT_SEED=(\d+)", text))
    assert (len(runs), len(seeds)) == (1, 1)
    return runs.pop(), seeds.pop()


def without_drawn(text: str) -> str:
    for word in drawn(text):
        text = text.replace(word, "DRAWN")
    return text


def test_the_second_answer_needs_no_plan_and_has_its_own_id_and_seed(render: Render) -> None:
    (first, planned), (second, again) = render(), render()
    assert (planned, again) == (0, 0)
    assert not {*drawn(first)} & {*drawn(second)}
    assert without_drawn(first) == without_drawn(second)


def test_another_project_that_is_read_for_the_first_time_changes_nothing(render: Render, tmp_path: Path) -> None:
    """The kit keeps what it knows of all clusters' files in one file. The answer was made again after each change of it."""
    assert render()[1] == 0
    (tmp_path / "other.toml").write_text("embedded = true\n[node]\ncpus = 4\n")
    os.utime(tmp_path / "other.toml", (1e9, 1e9))
    known_files.cluster(tmp_path / "other.toml")
    assert len([*tmp_path.glob("CACHE/kit/clusters-*")]) == 1
    assert render()[1] == 0


def test_the_kept_answer_is_the_one_that_a_plan_gives(render: Render, project: Path) -> None:
    kept, _ = render()
    for path in (project.parent / "CACHE" / "kit").glob("render-*"):
        path.unlink()
    fresh, planned = render()
    assert planned == 2
    assert without_drawn(kept) == without_drawn(fresh)


def link(path: Path, target: Path) -> None:
    """Move a file away, and leave a link to it."""
    path.rename(target)
    path.symlink_to(target.name)


CHANGES: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "the job": lambda at, _: (at / "job.toml").write_text(JOB.replace("once", "twice")),
    "the cluster": lambda at, _: (at / "clusters" / "here.toml").write_text("embedded = true\n[node]\ncpus = 2\n"),
    "a file of the workspace": lambda at, _: (at / "train.py").write_text("print()"),
    "a new file, which git lists": lambda at, _: (at / "more.py").write_text(""),
    "a file that is ignored now": lambda at, _: (at / ".gitignore").write_text("train.py.bak"),
    "a file that was looked for": lambda at, _: (at / ".kitignore").write_text("data/"),
    "a launcher of the project": lambda at, _: shell.run(
        ["cp", "-r", str(Path(command.__file__).parents[2] / "launchers"), str(at)]
    ),
    "an environment variable": lambda _, patch: patch.setenv("OF_THE_TEST", "1"),
    "the version": lambda _, patch: patch.setattr(kept_render, "__version__", "9.9"),
    "the folders of Python": lambda at, patch: patch.syspath_prepend(str(at)),
    "a link to the job": lambda at, _: link(at / "job.toml", at / "kept.toml"),
    "the permissions of a file": lambda at, _: (at / "train.py").chmod(0o600),
    "code of the kit": lambda _, patch: patch.setattr(
        sys.modules["kit.planning.plan"], "__file__", str(Path(command.__file__))
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_leads_to_a_new_plan(
    change: str, render: Render, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert render()[1] == 0
    CHANGES[change](project, monkeypatch)
    if change == "code of the kit":  # an entry for the file that the module now names was not recorded
        (kept,) = (project.parent / "CACHE" / "kit").glob("render-*")
        content = json.loads(kept.read_text())
        (place,) = [place for place, one in enumerate(content["inputs"]) if one[1].endswith("kit/planning/plan.py")]
        content["inputs"][place][2][-1] += 1  # as if the file had another time then
        kept.write_text(json.dumps(content))
    assert render()[1] > 0


def test_other_words_are_another_answer(render: Render) -> None:
    assert render("resources.nodes=1")[1] == 2
    assert render("resources.nodes=1")[1] == 0
    text, planned = render(as_json=True)
    assert planned == 2
    assert json.loads(text)["argv"][0] == "sbatch"


def test_a_damaged_kept_answer_is_made_again(render: Render, project: Path) -> None:
    (kept,) = (project.parent / "CACHE" / "kit").glob("render-*")
    for text in ("", "{}", '{"key": 1}', kept.read_text()[:-20]):
        kept.write_text(text)
        assert render()[1] == 2


def test_a_folder_that_changed_a_moment_ago_is_not_trusted(
    render: Render, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traced_inputs, "_SETTLED_S", 60.0)
    (project / "job.toml").write_text(JOB.replace("once", "new"))
    assert render()[1] > 0
    assert render()[1] > 0


def test_an_error_is_not_kept(render: Render, project: Path) -> None:
    from kit.errors import ConfigError

    (project / "job.toml").write_text("nodes = 3\n")
    for _ in range(2):
        with pytest.raises(ConfigError):
            render()


OUTSIDE: dict[str, Callable[[Path], object]] = {
    "a program": lambda _: shell.run(["true"]),
    "a program past kit/shell.py": lambda _: subprocess.run(["true"], check=True),
    "a written file": lambda at: (at / "new").write_text(""),
    "a connection": lambda _: __import__("socket").gethostbyname("localhost"),
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_what_may_differ_next_time_is_not_kept(what: str, tmp_path: Path) -> None:
    with traced_inputs.recorded() as trace:
        OUTSIDE[what](tmp_path)
    assert not trace.is_whole
    assert trace.inputs() is None


def test_the_clock_is_no_input_that_can_be_looked_at() -> None:
    asking = ModuleType("kit.of_the_test")
    asking.__dict__["time"] = time
    with traced_inputs.recorded() as trace:
        time.time()  # not by the kit: a library's own
        assert trace.is_whole
        exec("time.time()", asking.__dict__)
    assert not trace.is_whole


USES: dict[str, Callable[[Path], object]] = {
    "open": lambda at: (at / "file").read_text(),
    "open nothing": lambda at: os.path.exists(at / "none" / "file"),  # noqa: PTH110 - as libraries do
    "stat": lambda at: (at / "file").stat(),
    "is there": lambda at: (at / "none").exists(),
    "lstat": lambda at: (at / "link").lstat(),
    "readlink": lambda at: (at / "link").readlink(),
    "through a link": lambda at: (at / "link").read_text(),
    "list": lambda at: [*at.iterdir()],
    "scan": lambda at: [*os.scandir(at)],
    "access": lambda at: os.access(at / "file", os.R_OK),
    "git": lambda at: shell.run(["git", "-C", str(at), "ls-files", "--others"], check=False),
}
FOLLOWED: dict[str, Callable[[Path], object]] = {
    "open": lambda at: (at / "file").write_text("other"),
    "open nothing": lambda at: shell.run(["install", "-D", "/dev/null", str(at / "none" / "file")]),
    "stat": lambda at: (at / "file").chmod(0o600),
    "is there": lambda at: (at / "none").mkdir(),
    "lstat": lambda at: shell.run(["ln", "-sfn", "other", str(at / "link")]),
    "readlink": lambda at: shell.run(["ln", "-sfn", "other", str(at / "link")]),
    "through a link": lambda at: (at / "file").write_text("other"),
    "list": lambda at: (at / "new").touch(),
    "scan": lambda at: (at / "new").touch(),
    "access": lambda at: (at / "file").chmod(0o000),
    "git": lambda at: (at / "new").touch(),
}


@pytest.mark.parametrize("use", USES)
def test_every_way_to_use_a_path_is_recorded(use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_inputs, "_SETTLED_S", -60.0)
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with traced_inputs.recorded() as trace:
        USES[use](tmp_path)
    inputs = trace.inputs()
    assert inputs is not None and traced_inputs.unchanged(inputs)
    FOLLOWED[use](tmp_path)
    assert not traced_inputs.unchanged(inputs)


def test_the_functions_of_python_are_its_own_again_after_an_error() -> None:
    before = os.stat, os.lstat, os.readlink, os.access, time.time, shell.run
    with pytest.raises(ZeroDivisionError), traced_inputs.recorded():
        assert os.stat is not before[0]
        raise ZeroDivisionError
    assert (os.stat, os.lstat, os.readlink, os.access, time.time, shell.run) == before
