"""What a manifest says of the job's git repository; git itself is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import shell
from kit.runs.manifest import Git, git_state


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A fresh repository with one file that nobody has added."""
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    (tmp_path / "job.toml").write_text('name = "a"\n')
    return tmp_path


def git(folder: Path, *words: str) -> str:
    return shell.run(["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]).stdout


def test_outside_a_repository_and_before_its_first_commit_there_is_no_commit(tmp_path: Path, repository: Path) -> None:
    assert git_state(Path("/")) is None
    assert git_state(repository) is None
    assert git_state(tmp_path / "none") is None


def test_commit_branch_and_what_is_dirty(repository: Path) -> None:
    git(repository, "add", "job.toml")
    git(repository, "commit", "--quiet", "--message=first")
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "untracked").touch()
    assert git_state(repository) == Git(commit=commit, branch="main", dirty=False)
    (repository / "job.toml").write_text('name = "b"\n')
    assert git_state(repository) == Git(commit=commit, branch="main", dirty=True)
    git(repository, "checkout", "--quiet", "--detach", "--force")
    assert git_state(repository) == Git(commit=commit, branch="(detached)", dirty=False)
