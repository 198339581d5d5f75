"""Runs the console blocks of every page on one embedded cluster, and compares what they print with what the page shows.

A block with `<!--- skip: next "reason" -->` above it is not run. `…` in an output stands for any text.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import SkipTest

import pytest

from kit import shell
from tests.cluster.conftest import short_folder, skip_without_slurm
from tests.pages import PAGES, examples, name_of
from tests.support import REPO


@pytest.fixture(scope="module")
def user(train_cpu: Path) -> Iterator[dict[str, str]]:
    """The environment of a user with the kit on PATH, the image train-cpu in the store, and a cluster that is up."""
    skip_without_slurm()
    with short_folder() as home:
        (home / "config/git").mkdir(parents=True)
        (home / "config/git/config").write_text("[user]\nname = Ada\nemail = ada@example.org\n")
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("KIT_", "SLURM_", "PYTEST_"))},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_STATE_HOME": str(home / "state"),
            "KIT_STORE": str(train_cpu),
            "COLUMNS": "120",
            "SLURM_CONF": str(home / "data/kit/clusters/local/slurm.conf"),
        }
        try:
            shell.run(
                [sys.executable, "-m", "kit", "cluster", "up", "--placeholder-gpus"], cwd=home, env=env, timeout=120
            )
            yield env
        finally:
            shell.run([sys.executable, "-m", "kit", "cluster", "down"], cwd=home, env=env, timeout=120, check=False)


def _with_blocks() -> list[Path]:
    return [page for page in PAGES if "```console" in page.read_text(encoding="utf-8")]


@pytest.mark.cluster
@pytest.mark.parametrize("page", _with_blocks(), ids=name_of)
def test_the_blocks_of_a_page(page: Path, user: dict[str, str], tmp_path: Path) -> None:
    project = tmp_path / "digits"
    project.mkdir()
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    (project / ".gitignore").write_text("runs/\n")
    shutil.copytree(REPO / "examples", project / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    ran = 0
    for example in examples(page, project, user):
        try:
            example.evaluate()
            ran += 1
        except SkipTest:
            continue
    assert ran or "skip: next" in page.read_text(encoding="utf-8")
