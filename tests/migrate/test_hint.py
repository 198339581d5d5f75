"""A batch script in place of a job file or a program is recognised, and `kit migrate` is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kit import shell
from kit.config.toml_file import load_toml
from kit.errors import ConfigError

_TEXT = "#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n"


def _kit(*words: str, cwd: Path) -> shell.Completed:
    return shell.run([sys.executable, "-m", "kit", *words], cwd=cwd, check=False)


def test_a_batch_script_is_no_job_file(tmp_path: Path) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(_TEXT)
    with pytest.raises(ConfigError, match="this is a batch script") as refused:
        load_toml(script)
    assert refused.value.hint == f"kit migrate {script}"


def test_a_batch_script_is_submitted_as_it_is_and_migrate_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.sbatch").write_text(_TEXT)
    done = _kit("render", "train.sbatch", "--cluster", "local", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("kit migrate train.sbatch") == 1
    assert _TEXT in done.stdout


def test_the_command_that_is_named_works(tmp_path: Path) -> None:
    (tmp_path / "train.sbatch").write_text(_TEXT)
    (tmp_path / "train.py").touch()
    done = _kit("init", "--script", "train.sbatch", cwd=tmp_path)
    assert done.returncode != 0
    assert "this is a batch script" in done.stderr
    named = done.stderr.strip().rpartition("try: kit ")[2].split()
    assert named == ["migrate", "train.sbatch"]
    pytest.importorskip("tree_sitter_bash", reason="the extra 'migrate' is not installed")
    assert _kit(*named, "--cluster", "local", cwd=tmp_path).returncode == 0
    assert (tmp_path / "migrated.txt").exists()
    assert _kit("render", "job.toml", "--cluster", "local", cwd=tmp_path).returncode == 0


def test_a_program_that_names_sbatch_is_a_program(tmp_path: Path) -> None:
    """Only a header is one: a Python program may write a batch script."""
    (tmp_path / "train.py").write_text('#!/usr/bin/env python3\nHEAD = "#SBATCH --nodes=2"\n')
    done = _kit("init", "--script", "train.py", "--image", "train-cpu", "--cluster", "local", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
