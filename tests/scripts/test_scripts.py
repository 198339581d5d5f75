"""Every script: raw templates pass `bash -n`, rendered run folders pass shellcheck."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from kit import render, shell
from kit.submission.folder import write_files
from tests import laid_out
from tests.golden.cases import CASES, MARK, SINGLES, Case, Single, planned, planned_single, single
from tests.support import REPO

TEMPLATES = sorted((REPO / "templates").rglob("*.sh"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_raw_template_is_valid_bash(path: Path) -> None:
    done = shell.run(["bash", "-n", str(path)], check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_no_substring_stands_for_a_default(path: Path) -> None:
    """`${NAME:0}` is the whole value or nothing, `${NAME:-0}` a default: a substring here says its length."""
    assert not re.findall(r"\$\{\w+:\d+\}", path.read_text(encoding="utf-8"))


MARK_OF_BODY = "# Below this line nothing is generated.\n"
# A few lines each, generated as a whole: there is no body.
WHOLLY_GENERATED = {"program.sh", "image-env.sh", "plain.sh"}


def jinja_in_body(text: str) -> list[str]:
    """Lines with Jinja below the mark; a file without the mark is all body."""
    _, _, body = text.rpartition(MARK_OF_BODY)
    return [line for line in body.splitlines() if re.search(r"\{\{|\{%|\{#", re.sub(r"\$\{#", "", line))]


@pytest.mark.parametrize("path", sorted((laid_out.LIB).glob("*.sh")), ids=lambda p: p.name)
def test_each_return_says_what_it_returns(path: Path) -> None:
    """In a trap, such as that of the script's end, a `return` alone returns the code from before the trap."""
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    assert [f"{path.name}:{number}" for number, line in lines if re.search(r"\breturn\s*($|;|\}|\|\||&&)", line)] == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_jinja_stands_in_the_head_only(path: Path) -> None:
    if path.name not in WHOLLY_GENERATED:
        assert jinja_in_body(path.read_text(encoding="utf-8")) == []


def test_jinja_in_a_body_is_found() -> None:
    batch = (laid_out.BIN / "batch.sh").read_text(encoding="utf-8")
    assert jinja_in_body(batch + "echo {{ name | sh }}\n") == ["echo {{ name | sh }}"]
    assert jinja_in_body(batch.replace(MARK_OF_BODY, "")) != [], "without its mark all of it is body"


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_rendered_scripts_pass_shellcheck(case: Case, tmp_path: Path) -> None:
    # Also the libraries that only other runs have, which the same programs source.
    render.write_all(tmp_path)
    written = write_files(planned(case), tmp_path)
    # Function files are followed from the scripts that source them: alone, half of their variables are somebody else's.
    scripts = [p for p in written if p.suffix in {".sh", ""} and p.read_text().startswith("#!")]
    assert len(scripts) >= 8
    if case is CASES[0]:
        options = ["--external-sources"]
    else:
        # The libraries and the programs without a head are the same in every case; following them once is enough.
        scripts = [p for p in scripts if p.parent.name != "bin"]
        options = ["--exclude=SC1091,SC2154"]
    done = shell.run(["shellcheck", *options, *map(str, scripts)], check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("case", SINGLES, ids=lambda c: c.name)
def test_single_files_pass_shellcheck(case: Single, tmp_path: Path) -> None:
    path = tmp_path / "single.sh"
    path.write_text(single(case))
    done = shell.run(["shellcheck", str(path)], check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("case", SINGLES, ids=lambda c: c.name)
def test_a_single_file_writes_the_run_folder_that_the_plan_has(case: Single, tmp_path: Path) -> None:
    """Byte for byte, but for the job's number; and what it becomes is that folder's batch script."""
    text = single(case).replace("/shared/runs/", f"{tmp_path}/")
    path = tmp_path / "single.sh"
    path.write_text(text.replace("\nset -uo pipefail\n", "\necho became the batch script; exit 5\n", 1))
    done = shell.run(["bash", str(path)], env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "4711"}, check=False)
    assert (done.returncode, done.stdout) == (5, "became the batch script")
    run = tmp_path / "llama-4711"
    plan = planned_single(case)
    for file in plan.files:
        if file.name != "batch.sh":
            wanted = file.text.replace("/shared/runs/", f"{tmp_path}/").replace(MARK, "4711")
            assert (run / file.name).read_text() == wanted
        assert (run / file.name).stat().st_mode & 0o777 == file.mode
    assert all((run / folder).is_dir() for folder in plan.folders)
    assert {p.name for p in tmp_path.iterdir()} == {"single.sh", "llama-4711"}, "nothing half-written"
    (run / "batch.sh").write_text("#!/bin/bash\nexit 6\n")
    again = shell.run(["bash", str(path)], env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "4711"}, check=False)
    assert again.returncode == 6, "a job that is queued again keeps its folder"


def test_a_single_file_says_how_it_is_run(tmp_path: Path) -> None:
    path = tmp_path / "single.sh"
    path.write_text(single(SINGLES[0]))
    done = shell.run(["bash", str(path)], env={"PATH": "/usr/bin:/bin"}, check=False)
    assert (done.returncode, done.stderr) == (2, f"This file runs under sbatch: sbatch {path}")


@pytest.mark.parametrize("name", ["MEGATRON_LM", "TORCHTITAN", "PRIME_RL", "NEMO_RL"])
def test_foreign_leaves_the_callers_checkouts_alone(name: str) -> None:
    """A variable of the script's own by that name would take the caller's from the tests: an array is not exported."""
    text = (REPO / "scripts" / "foreign.sh").read_text(encoding="utf-8")
    assert not re.search(rf"(^|[\s;]){name}=\(", text)
