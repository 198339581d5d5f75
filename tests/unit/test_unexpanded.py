"""`~` in paths is the home folder; `$NAME` in words of a program is expanded by nobody, and warned of."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kit import shell
from kit.errors import ConfigError
from tests.support import REPO, make_site, plan_of, write_job

ENV = {**os.environ, "PYTHONPATH": str(REPO)}
JOB = 'name = "digits"\nlauncher = "ddp"\n'


def warned(tmp_path: Path, text: str) -> dict[str, str]:
    made = plan_of(write_job(tmp_path, JOB + text), site=make_site(containers=False))
    return {one.key: str(one) for one in made.warnings}


def test_a_home_folder_is_meant(tmp_path: Path) -> None:
    text = 'mounts = [{ source = "~/data", target = "/data" }]\n[slurm]\noutput = "~/logs/%j.out"\n'
    made = plan_of(write_job(tmp_path, JOB + text))
    assert "/home/ada/data" in [mount.source for mount in made.decisions.paths.mounts]
    assert "--output=/home/ada/logs/%j.out" in made.text_of("batch.sh")
    with pytest.raises(ConfigError, match="another user's home folder"):
        plan_of(write_job(tmp_path, JOB + 'mounts = [{ source = "~bob/data", target = "/data" }]\n'))


def test_what_nothing_expands_is_warned_of(tmp_path: Path) -> None:
    found = warned(
        tmp_path, 'args = ["--data=$SCRATCH/x", "--run-dir", "~/out", "--seed", "${RANK}"]\n[env]\nHERE = "$PWD"\n'
    )
    assert set(found) == {"args[0]", "args[2]", "args[4]", "env.HERE"}
    assert found["args[0]"].startswith(f"{tmp_path}/job.toml: args[0]: nothing expands $SCRATCH: the program gets")
    assert 'inherit = ["SCRATCH"]' in found["args[0]"]
    assert "nothing expands ~" in found["args[2]"]
    assert 'rank_args = { --rank = "RANK" }' in found["args[4]"]


def test_what_a_shell_reads_or_is_no_variable_is_not(tmp_path: Path) -> None:
    text = """setup = ["source $HOME/env.sh"]
[roles.a]
command = ["bash", "-c", "echo $HOSTNAME"]
"""
    assert warned(tmp_path, text) == {}
    assert warned(tmp_path, 'args = ["^a+$", "5$", "a~b"]\n') == {}


def test_every_way_to_submit_shows_it_once(tmp_path: Path) -> None:
    write_job(tmp_path, JOB + 'script = "train.py"\nargs = ["$SCRATCH/x"]\n[sweep.grid]\nseed = [1, 2]\n')
    (tmp_path / "train.py").touch()
    for argv in (["sweep", "--dry-run"], ["sweep", "--dry-run", "--json"]):
        said = shell.run([sys.executable, "-m", "kit", *argv, "--no-container"], cwd=tmp_path, env=ENV).stderr
        assert said.count("kit: warning: job.toml: args[0]: nothing expands $SCRATCH") == 1
    write_job(tmp_path, JOB + 'script = "train.py"\nargs = ["$SCRATCH/x"]\n')
    for argv in (["render"], ["submit", "--dry-run"]):
        said = shell.run([sys.executable, "-m", "kit", *argv, "--no-container"], cwd=tmp_path, env=ENV).stderr
        assert said.count("kit: warning: job.toml: args[0]: nothing expands $SCRATCH") == 1
