"""`make release`: what it refuses, and that its archives install and run."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from kit import shell
from tests.support import REPO


def release(folder: Path, **env: str) -> shell.Completed:
    """scripts/release.sh in a checkout, with this checkout's Python."""
    python = str(REPO / ".venv/bin/python")
    words = ["bash", str(folder / "scripts/release.sh")]
    return shell.run(words, cwd=folder, env={**os.environ, "PYTHON": python, **env}, check=False, timeout=580)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clean repository with a version, a changelog and the script."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(REPO / "scripts/release.sh", tmp_path / "scripts")
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit/version.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-12-01\n")
    for words in ("init -q", "add -A", "-c user.name=a -c user.email=a@b commit -qm first"):
        shell.run(["git", *words.split()], cwd=tmp_path)
    return tmp_path


def test_a_checkout_with_changes_is_refused(checkout: Path) -> None:
    (checkout / "new").touch()
    assert "not committed" in release(checkout).stderr


def test_a_version_without_a_heading_is_refused(checkout: Path) -> None:
    (checkout / "CHANGELOG.md").write_text("## [Unreleased]\n")
    shell.run([*["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "more"]], cwd=checkout)
    assert "no heading '## [1.2.3] - YYYY-MM-DD'" in release(checkout).stderr


def test_a_version_that_has_a_tag_is_refused(checkout: Path) -> None:
    shell.run(["git", "tag", "v1.2.3"], cwd=checkout)
    done = release(checkout)
    assert "raise the version" in done.stderr
    assert not (checkout / "dist").exists()


def test_the_archives_have_the_version_of_kit(tmp_path: Path) -> None:
    """With a version of its own in pyproject.toml, a wheel of 0.2.0 would hold a kit that says 0.1.0."""
    (tmp_path / "kit").mkdir()
    shutil.copy(REPO / "pyproject.toml", tmp_path)
    (tmp_path / "kit/version.py").write_text('__version__ = "9.8.7"\n')
    assert shell.run([sys.executable, "-m", "hatchling", "version"], cwd=tmp_path).stdout == "9.8.7"


@pytest.mark.slow
def test_both_archives_install_and_run(tmp_path: Path) -> None:
    shell.run(["git", "clone", "-q", str(REPO), str(tmp_path / "clone")])
    done = release(tmp_path / "clone", KIT_RELEASE_REHEARSAL="1")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "clone/dist").iterdir())) == 2
