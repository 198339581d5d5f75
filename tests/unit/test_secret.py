"""Sources of secrets; tests/cluster/test_secrets.py shows that they do not leak."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.errors import ConfigError
from kit.record import secret
from kit.schema.job import Job


def gathered(folder: Path, name: str, text: str) -> dict[str, str]:
    (folder / name).write_text(text)
    job = Job.model_validate({"name": "x", "launcher": "ddp", "secrets": {"file": name}})
    return secret.gather(job, job_dir=folder, job_file="job.toml", environ={})


def test_a_toml_file(tmp_path: Path) -> None:
    assert gathered(tmp_path, "keys.toml", 'A = "x y"\nB = ""\n') == {"A": "x y", "B": ""}


def test_a_file_that_a_shell_could_source(tmp_path: Path) -> None:
    text = "# of wandb\nA=1\nexport B='x # y'  # not this\n\nC=\"a $HOME\"\nD=\n"
    assert gathered(tmp_path, ".env", text) == {"A": "1", "B": "x # y", "C": "a $HOME", "D": ""}


@pytest.mark.parametrize("line", ["canary", "A = canary", "A=canary more", "1A=canary", "source canary", "A='canary"])
def test_anything_else_is_refused_by_its_line_and_without_its_text(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        gathered(tmp_path, "keys.env", f"GOOD=1\n{line}\n")
    (fault,) = caught.value.faults
    assert fault.key == "line 2"
    assert "canary" not in str(fault)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    job = Job.model_validate({"name": "x", "launcher": "ddp", "secrets": {"file": ".env"}})
    with pytest.raises(ConfigError, match=r"\.env: cannot be read"):
        secret.gather(job, job_dir=tmp_path, job_file="job.toml", environ={})
