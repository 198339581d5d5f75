"""Names that another user chose, or that a clone brought, with text that a shell, a terminal or a program's options would obey."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import shell
from tests.unit.host_lab import Lab, lab  # noqa: F401
from tests.unit.test_foreign_links import COMMANDS, give
from tests.unit.test_hostile_files import answer_of
from tests.unit.test_reports import make

NAMES = (
    "$(touch owned)",
    "`touch owned`",
    "a\ntouch owned\n",
    "x;touch owned",
    "-rf",
    "--help",
    "\x1b]0;x\x07",
    "' \" \\",
    "*",
)
# No command prints what a terminal obeys.
CONTROLS = {*map(chr, range(32)), "\x7f"} - {"\n", "\t"}


def all_of(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("owned")}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_another_users_run_is_run_or_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The name of his run folder, and each name in its record: job, branch, user, cluster, image, node."""
    here = tmp_path / "project"
    (here / ".git").mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    theirs = make(here / "runs" / "gpt-1", 8, minutes=2)
    record = json.loads((theirs / "manifest.json").read_text())
    record |= dict.fromkeys(("job_name", "user", "image_name", "launcher", "job_file", "cluster"), name)
    record |= {"argv": ["sbatch", name], "git": {"commit": "c" * 40, "branch": name, "dirty": True}}
    (theirs / "manifest.json").write_text(json.dumps(record))
    (theirs / "logs" / f"{name.replace('/', '_')}.log").write_text("RuntimeError: lost\n")
    other = make(here / "runs" / name, 8, minutes=2)
    give(theirs)
    give(other)
    for words in (*COMMANDS, ("runs", "--json"), ("export", "RUN", "-o", "out.tar.gz")):
        text, found = answer_of(*("gpt-1" if word == "RUN" else word for word in words))
        assert found == "", words
        assert not CONTROLS & set(text), (words, text)
    assert all_of(tmp_path) == set()


@pytest.mark.parametrize("branch", ["$(touch${IFS}owned)", "`touch${IFS}owned`", "a;touch${IFS}owned", "-rf"])
def test_no_name_of_a_branch_is_run(lab: Lab, branch: str) -> None:  # noqa: F811
    (lab.folder / "job.toml").write_text('name = "x"\nlauncher = "python"\nscript = "train.py"\n')
    (lab.folder / "train.py").write_text("")
    for words in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")):
        subprocess.run(["git", *words], cwd=lab.folder, check=True)
    subprocess.run(["git", "symbolic-ref", "HEAD", f"refs/heads/{branch}"], cwd=lab.folder, check=True)
    subprocess.run(["git", "reset", "-q"], cwd=lab.folder, check=True)
    text, found = answer_of("submit", "job.toml", "--cluster", "there", "--no-container")
    assert found == "" and lab.calls("sbatch.calls"), text
    for command in ("runs", "status", "why"):
        assert answer_of(command)[1] == ""
    assert all_of(lab.folder.parent) == set()


@pytest.fixture(params=[0, 0o077])
def umask(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    # The kit remembers it for the tools that it starts.
    monkeypatch.setattr(shell, "_umask", shell._umask)
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_whatever_the_umask_others_write_nothing_of_a_submit(lab: Lab, umask: int) -> None:  # noqa: F811
    """Run folder, snapshot, secrets, locks, caches, records: all that a submit makes."""
    (lab.folder / "job.toml").write_text(
        'name = "x"\nlauncher = "python"\nscript = "train.py"\n[secrets]\nfile = "secret.env"\n'
    )
    (lab.folder / "train.py").write_text("")
    (lab.folder / "secret.env").write_text("KEY=x\n")
    (lab.folder / "secret.env").chmod(0o600)
    before = set(lab.folder.parent.rglob("*"))
    text, found = answer_of("submit", "job.toml", "--cluster", "there", "--no-container")
    assert found == "" and lab.calls("sbatch.calls"), text
    answer_of("runs")
    made = [path for path in lab.folder.parent.rglob("*") if path not in before and not path.is_symlink()]
    # The stand-ins for Slurm's commands have the umask of the user's programs.
    made = [path for path in made if not path.is_relative_to(lab.tools)]
    assert len(made) > 20
    assert [str(path) for path in made if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)] == []
    secrets = [path for path in made if path.name.startswith(".secrets")]
    assert secrets and [path.stat().st_mode & 0o077 for path in secrets] == [0]
