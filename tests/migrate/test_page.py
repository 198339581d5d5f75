"""docs/guides/migrate.md shows what kit migrate writes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from kit.migrate import write_job
from kit.migrate.read_script import read_script
from tests.support import REPO

pytest.importorskip("tree_sitter_bash", reason="the extra 'migrate' is not installed")

PAGE = (REPO / "docs/guides/migrate.md").read_text(encoding="utf-8")


def _block(head: str) -> str:
    found = re.search(rf"^```{re.escape(head)}\n(.*?)^```$", PAGE, re.M | re.S)
    assert found, head
    return found[1]


def test_the_page_shows_the_job_and_the_report(tmp_path: Path) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(_block('text title="train.sbatch"'))
    report = read_script(script, script.read_text())
    assert report.outcome == "workaround"
    assert tomllib.loads(_block('toml title="job.toml"')) == tomllib.loads(write_job.as_toml(report))
    assert _block('text title="migrated.txt"').rstrip("\n") in report.as_text()
