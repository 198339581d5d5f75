"""The page on another attention or loss: its lines are in the model's file, and a project's copy of that file is what runs."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

from kit import config
from kit.planning.plan import plan
from tests.support import REPO, make_lock, make_site, write_job

PAGE = (REPO / "docs/guides/training.md").read_text(encoding="utf-8")
MODEL = REPO / "launchers/lib/model.py"


def section() -> str:
    return PAGE.partition("## Your own attention or loss\n")[2].partition("\n## ")[0]


def test_the_lines_that_the_page_names_are_in_the_model() -> None:
    text = MODEL.read_text(encoding="utf-8")
    named = re.search(r"In place of `(return [^`]+)` write", section())
    assert named is not None
    assert (text.count(named[1]), text.count("# ---- attention ----")) == (1, 1)
    (example,) = re.findall(r"```python\n(.*?)```", section(), flags=re.DOTALL)
    lines = example.strip().replace("\n", "\n        ")
    tree = ast.parse(text.replace(named[1], lines))
    (forward,) = [
        made
        for one in tree.body
        if isinstance(one, ast.ClassDef) and one.name == "GPT"
        for made in one.body
        if isinstance(made, ast.FunctionDef) and made.name == "forward"
    ]
    assert "logsumexp" in ast.unparse(forward.body[-1])


def test_a_job_runs_the_projects_copy(tmp_path: Path) -> None:
    for name in ("fsdp", "lib"):
        shutil.copytree(REPO / "launchers" / name, tmp_path / "launchers" / name)
    job = write_job(tmp_path, 'name = "mine"\nlauncher = "fsdp"\nimage = "train-cpu"\n[resources]\nnodes = 1\n')
    made = plan(config.load_job(job, cluster="local"), make_lock(), make_site())
    assert {name: source for source, name in made.copies} == {
        "code": tmp_path / "launchers/fsdp",
        "code/lib": tmp_path / "launchers/lib",
    }
