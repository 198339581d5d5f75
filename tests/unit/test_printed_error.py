"""With --json, the last line of stderr is the error as one object, whatever its class; stdout stays empty."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kit import shell
from tests.support import write_job

CLUSTER = '[node]\ncpus = 8\n[container]\nruntime = "bare"\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "here.toml").write_text(CLUSTER)
    write_job(tmp_path, 'name = "digits"\nlauncher = "ddp"\n[resources]\nnodez = 2\n')
    return tmp_path


def failed(project: Path, *words: str) -> tuple[int, dict[str, Any]]:
    done = shell.run([sys.executable, "-m", "kit", *words], cwd=project, check=False)
    assert done.stdout == ""
    said = json.loads(done.stderr.splitlines()[-1])
    assert said["schema_version"] == 1
    assert {*said["error"]} == {"class", "message", "file", "key", "try", "exit_code"}
    assert said["error"]["exit_code"] == done.returncode
    return done.returncode, said["error"]


def test_a_wrong_value_of_a_file(project: Path) -> None:
    code, said = failed(project, "submit", "--json", "--cluster", "here")
    assert (code, said["class"], said["file"], said["key"]) == (3, "ConfigError", "job.toml", "resources.nodez")
    assert "nodes" in said["try"]


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (("status", "nothing", "--json"), 7, "RunError"),
        (("wait", "nothing", "--json"), 7, "RunError"),
        (("runs", "--json", "--nonsense"), 2, "UsageError"),
        (("submit", "--json", "--follow"), 2, "UsageError"),
    ],
)
def test_other_errors(project: Path, words: tuple[str, ...], code: int, name: str) -> None:
    found, said = failed(project, *words)
    assert (found, said["class"]) == (code, name)
    assert said["message"]
    assert said["try"]


def test_without_json_it_is_text(project: Path) -> None:
    """Also if the program of the job has an option of this name."""
    for words in (["status", "nothing"], ["submit", "--cluster", "here", "--", "--json"]):
        done = shell.run([sys.executable, "-m", "kit", *words], cwd=project, check=False)
        assert done.stderr.startswith("kit: "), done.stderr
