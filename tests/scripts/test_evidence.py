"""evidence.sh reads in the folder of the ranks' reports only what this user's ranks have put there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import shell
from tests import laid_out

NOBODY = 65534
SECRET = "only-its-owner-reads-this"


@pytest.fixture
def reports() -> Iterator[Path]:
    """The folder of the reports of a job that runs nowhere else."""
    folder = Path(f"/dev/shm/kit-{os.geteuid()}-88{os.getpid()}")
    folder.mkdir(mode=0o700)
    yield folder
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / ".secrets"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


def evidence(reports: Path, tmp_path: Path) -> str:
    """What evidence.sh writes of rank 0, which is a process that sleeps."""
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": reports.name.rpartition("-")[2]}
    rank = subprocess.Popen(["sleep", "600"], env={**env, "RANK": "0", "KIT_RANK_SHELL": str(os.getpid())})
    try:
        shell.run([f"{laid_out.BIN}/evidence.sh", str(tmp_path / "evidence")], env=env, timeout=60)
    finally:
        rank.kill()
        rank.wait()
    return (tmp_path / "evidence" / "rank-0.txt").read_text()


def test_the_report_of_a_rank_is_in_its_evidence(reports: Path, tmp_path: Path) -> None:
    (reports / "@0").write_text("7 compute 1.0\n")
    assert "\nreport 7 compute 1.0\n" in evidence(reports, tmp_path)


def _link_a_file(reports: Path, secret: Path) -> None:
    (reports / "@0").symlink_to(secret)


def _link_the_folder(reports: Path, secret: Path) -> None:
    """A link of another user to a folder of this one, in which a file happens to have this name."""
    reports.rmdir()
    secret.rename(secret.with_name("@0"))
    reports.symlink_to(secret.parent)


def _make_first(reports: Path, secret: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    (reports / "@0").symlink_to(secret)
    os.chown(reports, NOBODY, NOBODY)


def _put_a_file(reports: Path, secret: Path) -> None:
    """As by a hard link: the file is this user's, and the folder is not."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    (reports / "@0").write_text(secret.read_text())
    os.chown(reports, NOBODY, NOBODY)


@pytest.mark.parametrize("squat", [_link_a_file, _link_the_folder, _make_first, _put_a_file])
def test_c2_no_secret_comes_into_the_evidence_by_a_folder_that_another_user_made(
    reports: Path, secret: Path, tmp_path: Path, squat: object
) -> None:
    squat(reports, secret)  # type: ignore[operator]
    text = evidence(reports, tmp_path)
    assert SECRET not in text
    assert "\nreport -\n" in text


@pytest.mark.timeout(120)
def test_c2_a_pipe_in_place_of_a_report_costs_no_evidence(reports: Path, tmp_path: Path) -> None:
    os.mkfifo(reports / "@0")
    text = evidence(reports, tmp_path)
    assert "\nreport -\n" in text
    assert text.endswith("== stacks\n")


@pytest.mark.parametrize("squat", ["link", "pipe"])
@pytest.mark.timeout(120)
def test_c2_the_end_of_a_rank_is_written_to_its_own_report_alone(reports: Path, tmp_path: Path, squat: str) -> None:
    """rank.sh would wait for the pipe, and would change a report of this user's other job."""
    report = "7 compute 1.0\n0 1.0 0 0.0 1\n"
    if squat == "link":
        reports.rmdir()
        (tmp_path / "@0").write_text(report)
        reports.symlink_to(tmp_path)
    else:
        os.mkfifo(reports / "@0")
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": reports.name.rpartition("-")[2], "RANK": "0"}
    shell.run(["bash", "-c", f"source {laid_out.LIB}/reports.sh; reports::end"], env=env, timeout=30)
    assert squat == "pipe" or (tmp_path / "@0").read_text() == report
