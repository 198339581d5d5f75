"""Slurm's file name patterns in slurm.output and slurm.error, and the folders that they need."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from kit.errors import ConfigError, RunError
from kit.hosts import output_folders
from kit.planning.plan import Plan
from kit.planning.sbatch_header import header
from kit.submission.prepare_run import prepare_job
from kit.sweeps import prepare as sweeps
from tests.support import plan_of, write_job

JOB = 'name = "digits"\nlauncher = "ddp"\n'


def planned(folder: Path, slurm: str) -> Plan:
    return plan_of(write_job(folder, f"{JOB}[slurm]\n{slurm}\n"))


def files(plan: Plan) -> dict[str, str]:
    """What the header says of output and error."""
    named = (option.removeprefix("--").partition("=")[::2] for option in header(plan.text_of("batch.sh")))
    return {name: value for name, value in named if name in {"output", "error", "open-mode"}}


def script(output: object, *, name: str = "digits") -> str:
    return f"#!/bin/bash\n#SBATCH --job-name={name}\n#SBATCH --output={output}\n\ntrue\n"


def test_the_header_has_them_with_the_folders_filled_in(tmp_path: Path) -> None:
    made = planned(tmp_path, "output = '/logs/{user}/%x-%6j.out'\nerror = 'err/%A_%N.log'")
    assert files(made) == {
        "output": "/logs/ada/%x-%6j.out",
        "error": f"{tmp_path}/err/%A_%N.log",
        "open-mode": "append",
    }
    assert files(planned(tmp_path, "")) == {"output": "/shared/runs/digits-1/logs/batch.log", "open-mode": "append"}


def test_a_file_in_the_run_folder_gets_its_folder_there(tmp_path: Path) -> None:
    made = planned(tmp_path, "output = '{run}/slurm/%N.out'")
    assert files(made)["output"] == "/shared/runs/digits-1/slurm/%N.out"
    assert "slurm" in made.folders


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("x-%j-%b.out", "%a (the task's number in an array)"),
        ("x-%j-%b.out", "%b is not a pattern"),
        ("x-%j-%99j.out", "%99j is not a pattern"),
        ("x-%j.out%", "% is not a pattern"),
        ("%j/x.out", "%j can only be in the file's name"),
        ("{run}/%x/x.out", "%x can only be in the file's name"),
        ("logs/", "a file's name"),
        ("logs/%x.out", "two jobs would write into one file"),
        ("/dev/null", "two jobs would write into one file"),
        ("logs/%x-%a.out", "two jobs would write into one file"),
        ("my logs/%j.out", "which is split at blanks"),
        ("x-%j.out\\n#SBATCH --wrap=x", "which is split at blanks"),
        ("{nowhere}/%j.out", "{project}, {job}, {run}"),
    ],
)
def test_patterns_that_cannot_be(tmp_path: Path, pattern: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(tmp_path, f'output = "{pattern}"')
    assert "slurm.output" in str(caught.value)
    assert reason in str(caught.value)


def test_a_folder_that_slurm_would_take_for_a_pattern(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its folder may have no '%'"):
        planned(tmp_path / "100%j", "output = '%j.out'")


def test_the_tasks_of_an_array_write_into_files_of_their_own(tmp_path: Path) -> None:
    job = write_job(tmp_path, f"{JOB}[sweep.grid]\nseed = [1, 2]\nslurm.output = ['x/%A.out']\n")
    with pytest.raises(
        ConfigError,
        match=r"points 0-1: slurm.output: all points would write into 'x/%A.out': its name needs %j, or %A and %a",
    ):
        sweeps.prepare_sweep(job, cluster="local", containers=False)
    job.write_text(job.read_text().replace("%A.out", "%A_%a.out"))
    (array,) = sweeps.prepare_sweep(job, cluster="local", containers=False).arrays()
    assert f"#SBATCH --output={tmp_path}/x/%A_%a.out\n" in array.text


def test_extra_leads_to_the_key_of_its_own(tmp_path: Path) -> None:
    job = write_job(tmp_path, f"{JOB}[slurm]\nextra = ['--output=x-%j.out']\n")
    with pytest.raises(ConfigError, match=r"--output: write the key slurm.output instead"):
        prepare_job(job, cluster="local", overrides=[], containers=False)


def test_folders_are_made_and_kept(tmp_path: Path) -> None:
    with output_folders.folders(
        [script(tmp_path / "a/%u/%x/%j.out"), script(f"{tmp_path}/arrays/0/%a/logs/batch.log")]
    ):
        pass
    assert (tmp_path / "a" / getpass.getuser() / "digits").is_dir()
    assert not (tmp_path / "arrays").exists(), "a task's run folder is somebody else's"


def test_new_folders_go_when_the_submit_fails(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with pytest.raises(ZeroDivisionError), output_folders.folders([script(tmp_path / "old/new/newer/%j.out")]):
        assert (tmp_path / "old/new/newer").is_dir()
        raise ZeroDivisionError
    assert list((tmp_path / "old").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(RunError, match=r"file/logs: cannot be made: Not a directory"),
        output_folders.folders([script(tmp_path / "file/logs/%j.out")]),
    ):
        pass


def test_a_template_without_a_job_name_has_the_scripts(tmp_path: Path) -> None:
    """Slurm's own default; `kit submit` ended with a KeyError."""
    with output_folders.folders([f"#!/bin/bash\n#SBATCH --output={tmp_path}/%x/%j.out\n"]):
        assert (tmp_path / "batch.sh").is_dir()
