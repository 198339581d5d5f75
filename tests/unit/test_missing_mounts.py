"""A submit names sources of mounts that this machine lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.submission import warnings
from tests.support import make_site, plan_of, write_job

JOB = """\
name = "digits"
launcher = "ddp"
mounts = [
  { source = "%s", target = "/data" },
  { source = "tmpfs", target = "/scratch" },
  { source = "{run}/outputs", target = "/outputs" },
]
"""


@pytest.mark.parametrize("there", [True, False])
def test_only_what_is_not_here(tmp_path: Path, there: bool) -> None:
    data = tmp_path / "my data"
    if there:
        data.mkdir()
    made = plan_of(write_job(tmp_path, JOB % data), site=make_site(run_dir=tmp_path / "runs/digits-1"))
    found = [one for one in warnings.warn_of_mounts(made) if str(data) in one.problem]
    assert [(one.key, one.file) for one in found] == [("mounts", str(tmp_path / "job.toml"))] * (not there)
    assert [one for one in warnings.warn_of_mounts(made) if "scratch" in one.problem or "outputs" in one.problem] == []


def test_a_folder_that_may_not_be_entered_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan_of(write_job(tmp_path, JOB % (tmp_path / "data")), site=make_site(run_dir=tmp_path / "runs/digits-1"))

    def closed(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("os.lstat", closed)
    assert [*warnings.warn_of_mounts(made)] == []


def test_without_a_container_nothing_is_mounted(tmp_path: Path) -> None:
    job = write_job(tmp_path, JOB % (tmp_path / "data") + '[container]\nruntime = "bare"\n')
    made = plan_of(job, site=make_site(run_dir=tmp_path / "runs/digits-1", containers=False))
    assert [*warnings.warn_of_mounts(made)] == []
