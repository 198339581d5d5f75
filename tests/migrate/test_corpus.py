"""Each form of script becomes what its row says, and no line of it is lost."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from kit.errors import ConfigError, UsageError
from kit.migrate import write_job
from kit.migrate.read_script import read_script
from kit.schema.job import Job
from tests.migrate.forms import FORMS, Form

pytest.importorskip("tree_sitter_bash", reason="the extra 'migrate' is not installed")


def _written(tmp_path: Path, form: Form) -> Path:
    script = tmp_path / "job.sbatch"
    script.write_text(form.script)
    for name, text in form.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return script


def _key(job: dict[str, Any], dotted: str) -> Any:
    found: Any = job
    for part in dotted.split("."):
        found = found[part]
    return found


@pytest.mark.parametrize("name", FORMS)
def test_a_script_becomes_what_its_row_says(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    report = read_script(_written(tmp_path, form), form.script)
    assert report.outcome == form.outcome, report.as_text()
    assert form.reason in report.as_text()
    if form.outcome != "refused":
        job = tomllib.loads(write_job.as_toml(report))
        Job.model_validate(job)
        assert {key: _key(job, key) for key in form.keys} == form.keys


@pytest.mark.parametrize("name", FORMS)
def test_every_line_has_its_place(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    report = read_script(_written(tmp_path, form), form.script)
    covered = {line for entry in report.entries for line in range(entry.lines[0], entry.lines[1] + 1)}
    lines = form.script.splitlines()
    assert {number for number, line in enumerate(lines, 1) if line.strip()} <= covered
    assert all(place.what for entry in report.entries for place in entry.places)


def test_most_forms_are_whole() -> None:
    outcomes = [form.outcome for form in FORMS.values()]
    assert len(outcomes) >= 50
    assert outcomes.count("whole") >= 40


def test_the_exit_code_of_the_ranks_is_no_variable_of_the_shell(tmp_path: Path) -> None:
    form = FORMS["after-with-code"]
    assert "inherit" not in read_script(_written(tmp_path, form), form.script).job


def test_a_secret_is_in_no_file(tmp_path: Path) -> None:
    script = _written(tmp_path, FORMS["secret"])
    write_job.migrate(script, output=None, cluster="local", force=False)
    written = "".join(path.read_text() for path in tmp_path.iterdir() if path != script)
    assert "HF_TOKEN" in written
    assert "abcdef" not in written


def test_a_refused_script_gets_a_report_and_no_job(tmp_path: Path) -> None:
    script = _written(tmp_path, FORMS["two-steps"])
    report = write_job.migrate(script, output=None, cluster="local", force=False)
    with pytest.raises(ConfigError, match="starts 2 programs"):
        write_job.check(report)
    assert (tmp_path / write_job.REPORT).exists()
    assert not (tmp_path / "job.toml").exists()
    # The hint says to run it again.
    assert write_job.migrate(script, output=None, cluster="local", force=False).outcome == "refused"
    (tmp_path / write_job.REPORT).write_text("my notes\n")
    with pytest.raises(UsageError, match="exists already"):
        write_job.migrate(script, output=None, cluster="local", force=False)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    script = _written(tmp_path, FORMS["srun-python"])
    (tmp_path / "job.toml").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        write_job.migrate(script, output=None, cluster="local", force=False)
    assert (tmp_path / "job.toml").read_text() == "mine"


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.outcome != "refused"])
def test_both_are_rendered_and_compared(name: str, tmp_path: Path) -> None:
    """The job of each script is one that a cluster takes: nothing is left for `kit submit` to refuse but an image to be locked."""
    script = _written(tmp_path, FORMS[name])
    for program in ("train.py", "train", "solver", "worker.sh"):
        (tmp_path / program).touch()
    report = write_job.migrate(script, output=None, cluster="infiniband", force=False)
    refused = [reason for reason in report.open if reason.startswith("the job")]
    assert all("kit import-image" in "".join(report.next) and "image" in reason for reason in refused), refused
    if not refused:
        assert report.outcome == FORMS[name].outcome
        assert any(line.startswith("srun: --") for line in report.differences)
    assert (tmp_path / write_job.REPORT).read_text() == report.as_text()


def test_differences_are_named(tmp_path: Path) -> None:
    script = _written(tmp_path, FORMS["srun-python"])
    (tmp_path / "train.py").write_text("")
    report = write_job.migrate(script, output=None, cluster="infiniband", force=False)
    assert "--partition: not in the script, gpu in the job" in report.differences
    assert any("the script has --nodes=2 --ntasks-per-node=4" in line for line in report.differences)


def test_a_value_that_no_job_takes_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --output='my log'\npython train.py\n")
    report = write_job.migrate(script, output=None, cluster="infiniband", force=False)
    assert report.outcome == "refused"
    assert "slurm.output" in report.refused[0]
    assert not (tmp_path / "job.toml").exists()
