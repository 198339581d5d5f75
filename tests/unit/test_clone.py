"""A clone is data: looking at one executes nothing that it brings."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from kit import git
from kit.bisection import commits
from kit.errors import ConfigError, ToolError
from kit.runs import manifest, traced_inputs
from kit.runs.workspace import Left
from kit.snapshots import patch, scan
from kit.snapshots.scan import Scan
from kit.snapshots.store import Store

ROOT = Path(__file__).parents[2]
_GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]


def _git(folder: Path, *words: str) -> str:
    return subprocess.run([*_GIT, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A folder in which the program of a clone writes its name when it is executed."""
    folder = tmp_path / "ran"
    folder.mkdir()
    return folder


def _program(place: Path, ran: Path, name: str) -> str:
    """A program that notes that it was executed, and then does what a filter does."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f'#!/bin/sh\ntouch "{ran}/{name}"\nexec cat\n')
    place.chmod(0o755)
    return str(place)


@pytest.fixture
def copied(tmp_path: Path, ran: Path) -> Path:
    """An unpacked project: two commits, changed files, and a `.git` whose configuration names a program wherever git takes one."""
    folder = tmp_path / "copied"
    folder.mkdir()
    _git(folder, "init", "-q")
    attributes = "* filter=x diff=x\n*.bin filter=y\n"
    for name, text in {"train.py": "one\n", "a.bin": "bin\n", "job.toml": "", ".gitattributes": attributes}.items():
        (folder / name).write_text(text)
    _git(folder, "add", ".")
    _git(folder, "commit", "-qm", "first")
    (folder / "train.py").write_text("two\n")
    _git(folder, "commit", "-qam", "second")
    (folder / "train.py").write_text("three\n")
    (folder / "new.py").write_text("new\n")
    os.utime(folder / "a.bin", (1, 1))  # the index does not know this time: git reads the file again
    keys = (
        *("core.fsmonitor", "core.pager", "core.editor", "core.sshCommand", "core.gitProxy", "core.askPass"),
        *("core.alternateRefsCommand", "diff.external", "diff.x.textconv", "diff.x.command", "gpg.program"),
        *("filter.x.clean", "filter.x.smudge", "filter.y.process", "credential.helper", "uploadpack.packObjectsHook"),
        *("remote.origin.uploadpack", "pager.log", "pager.diff", "pager.status", "interactive.diffFilter"),
    )
    for key in keys:
        _git(folder, "config", key, _program(folder / ".git/programs" / key, ran, key))
    for key in ("ls-files", "status", "diff", "config", "log"):
        _git(folder, "config", f"alias.{key}", f"!touch {ran}/alias-{key}")
    for key, value in {
        "filter.x.required": "true",
        "filter.y.required": "true",
        "log.showSignature": "true",
        "core.hooksPath": ".git/own",
        "protocol.ext.allow": "always",
    }.items():
        _git(folder, "config", key, value)
    for hook in ("post-index-change", "post-checkout", "fsmonitor-watchman", "reference-transaction"):
        for place in ("hooks", "own"):
            _program(folder / ".git" / place / hook, ran, f"{place}-{hook}")
    return folder


def _taken(folder: Path) -> Scan:
    return scan.scan(folder, index=folder / "no-index", asked_by="job.toml")


def test_the_git_configuration_of_a_copied_project_executes_nothing(copied: Path, tmp_path: Path, ran: Path) -> None:
    done = _taken(copied)
    assert {"train.py", "new.py", "a.bin"} <= set(done.sizes)
    text = patch.against_commit(done)
    assert "+three" in text
    assert "+new" in text
    assert "a.bin" not in text
    state = manifest.git_state(copied)
    assert state is not None
    assert state.dirty
    first = _git(copied, "-c", "core.fsmonitor=", "rev-parse", "HEAD^")
    listed = commits.between(copied, first, state.commit)
    assert listed is not None
    assert [one.text.endswith("(second)") for one in listed] == [True]
    store = Store(tmp_path / "store")
    tree = commits.Workspaces(folder=copied, store=store, left=Left(paths=(), rules=())).at(first)
    assert {one.path for one in tree.entries} == {"train.py", "a.bin", "job.toml", ".gitattributes"}
    assert sorted(one.name for one in ran.iterdir()) == []


def test_git_fetches_no_object_for_a_clone_that_lacks_one(copied: Path, ran: Path) -> None:
    """A clone without its objects names the program that fetches them."""
    helper = _program(copied / "fetch.sh", ran, "ext")
    for key, value in {
        "remote.origin.url": f"ext::{helper}",
        "remote.origin.promisor": "true",
        "remote.origin.partialclonefilter": "blob:none",
        "extensions.partialClone": "origin",
        "core.repositoryformatversion": "1",
    }.items():
        _git(copied, "config", key, value)
    blob = _git(copied, "-c", "core.fsmonitor=", "rev-parse", "HEAD:train.py")
    (copied / ".git/objects" / blob[:2] / blob[2:]).unlink()
    assert patch.against_commit(_taken(copied)) == ""
    assert sorted(one.name for one in ran.iterdir()) == []


def test_a_filter_of_the_users_own_configuration_runs(
    copied: Path, tmp_path: Path, ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As git-lfs: only what the repository defines is turned off."""
    own = tmp_path / "gitconfig"
    own.write_text(f'[filter "z"]\n\tclean = {_program(tmp_path / "z", ran, "z")}\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(own))
    (copied / ".gitattributes").write_text("*.py filter=z\n")
    assert "+three" in patch.against_commit(_taken(copied))
    assert [one.name for one in ran.iterdir()] == ["z"]


def test_a_filter_whose_name_no_option_can_hold_ends_the_command(copied: Path, ran: Path) -> None:
    _git(copied, "config", "filter.a=b.clean", _program(copied / ".git/c", ran, "equals"))
    (copied / ".gitattributes").write_text("*.py filter=a=b\n")
    assert patch.against_commit(_taken(copied)) == ""
    assert manifest.git_state(copied) is None
    assert sorted(one.name for one in ran.iterdir()) == []


@pytest.fixture
def beside_a_bare_repository(tmp_path: Path, ran: Path) -> Path:
    """A clone with a committed bare repository, in which a job lies."""
    job = tmp_path / "clone/job"
    _git(tmp_path, "init", "-q", "clone")
    for name in ("objects", "refs"):
        (job / name).mkdir(parents=True)
        (job / name / "keep").write_text("")
    monitor = _program(job / "fsm.sh", ran, "fsmonitor")
    (job / "HEAD").write_text("ref: refs/heads/main\n")
    (job / "config").write_text(f"[core]\n\trepositoryformatversion = 0\n\tworktree = .\n\tfsmonitor = {monitor}\n")
    (job / "job.toml").write_text('command = "true"\n')
    return job


def test_a_committed_bare_repository_executes_nothing(beside_a_bare_repository: Path, ran: Path) -> None:
    with pytest.raises(ConfigError, match="is a bare git repository, and its configuration may name programs"):
        _taken(beside_a_bare_repository)
    assert manifest.git_state(beside_a_bare_repository) is None
    below = beside_a_bare_repository / "below"
    below.mkdir()
    with pytest.raises(ToolError, match="is a bare git repository"):
        git.run(below, "ls-files")
    assert not any(ran.iterdir())


def test_git_itself_refuses_the_bare_repository(
    beside_a_bare_repository: Path, ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kit has not seen that it is one."""
    monkeypatch.setattr(git, "_refuse_bare", lambda _folder: None)
    assert git.run(beside_a_bare_repository, "ls-files", check=False).returncode != 0
    assert not any(ran.iterdir())


def test_a_kept_answer_is_asked_of_git_again_in_the_same_way(copied: Path, ran: Path) -> None:
    with traced_inputs.recorded() as trace:
        _taken(copied)
    (asked,) = trace._asked
    assert traced_inputs.signature("git", asked) == trace._asked[asked]
    assert not any(ran.iterdir())


def test_git_is_only_called_by_one_module() -> None:
    """Each other call would read the configuration of a clone as if it were the user's."""
    call = re.compile(r"""\[\s*["']git["']""")
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "kit").rglob("*.py") if call.search(path.read_text())}
    # traced_inputs has the word for its records.
    assert found == {"kit/git.py", "kit/runs/traced_inputs.py"}
