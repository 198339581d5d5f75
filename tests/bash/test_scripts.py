"""Every script: raw templates pass `bash -n`, rendered run folders pass shellcheck."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kit import shell
from kit.runs.folder import write_files
from tests.golden.cases import CASES, Case, planned
from tests.support import REPO

TEMPLATES = sorted((REPO / "templates").rglob("*.sh"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_raw_template_is_valid_bash(path: Path) -> None:
    done = shell.run(["bash", "-n", str(path)], check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_jinja_stands_in_the_head_only(path: Path) -> None:
    head, mark, body = path.read_text(encoding="utf-8").partition("# Below this line nothing is generated.\n")
    text = body if mark else head
    if path.parent.name == "lib":
        assert "{{" not in text and "{%" not in text


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_rendered_scripts_pass_shellcheck(case: Case, tmp_path: Path) -> None:
    written = write_files(planned(case), tmp_path)
    # Function files are followed from the scripts that source them: alone, half of their variables are somebody else's.
    scripts = [str(p) for p in written if p.suffix == ".sh" and p.read_text().startswith("#!")]
    assert len(scripts) >= 8
    done = shell.run(["shellcheck", "--external-sources", *scripts], check=False)
    assert done.returncode == 0, done.stdout
