"""The monitor's step on a node: nvidia-smi, the collector of the ranks' reports, and the folder these are in."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit import shell
from tests import laid_out
from tests.scripts.batch_lab import BIN, BatchLab

# It ends at once when it is told to.
DMON = "#!/bin/bash\necho a line\nexec sleep 600\n"
REPORT = f"{'7 compute 1.000 0.1 1 0.1 0 0 0':<127}\n{'0 1.000 1 0.000 0 1 1':<255}\n"


def reports(job: str) -> Path:
    """Where the ranks of a job write."""
    return Path(f"/dev/shm/kit-{os.geteuid()}-{job}")


@contextmanager
def monitor(folder: Path, job: str, *tools: str) -> Iterator[subprocess.Popen[bytes]]:
    """The monitor's task, as Slurm starts it, once it reads reports. tools: scripts that replace nvidia-smi."""
    programs = folder / "programs"
    programs.mkdir()
    for text in tools:
        (programs / "nvidia-smi").write_text(text)
        (programs / "nvidia-smi").chmod(0o755)
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": job, "SLURMD_NODENAME": "n1"}
    process = subprocess.Popen(
        [str(BIN / "gpu-monitor.sh"), str(folder), "pucmt", "DT", "5"], env=env, start_new_session=True
    )
    try:
        end = time.monotonic() + 60
        while not reports(job).exists() or (tools and not list(folder.glob("*.gutil"))):
            assert time.monotonic() < end
            time.sleep(0.05)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(reports(job), ignore_errors=True)


@pytest.fixture
def job() -> str:
    return str(5_000_000 + os.getpid())


@pytest.mark.parametrize("tools", [(), (DMON,)], ids=["no GPU", "dmon"])
def test_reports_are_read_once_more_and_removed_before_the_task_ends(
    tmp_path: Path, job: str, tools: tuple[str, ...]
) -> None:
    """What is left of a task that has ended, slurmstepd kills at once."""
    with monitor(tmp_path, job, *tools) as process:
        for rank in range(300):
            (reports(job) / f"@{rank}").write_text(REPORT)
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert not reports(job).exists()
    (spent,) = tmp_path.glob("*.spent")
    assert len(spent.read_text().splitlines()) == 300


def test_a_deaf_nvidia_smi_ends_with_the_task(tmp_path: Path, job: str) -> None:
    """Slurm would not find it, once its parent is gone, where it tracks processes by their parents."""
    pid = tmp_path / "pid"
    deaf = f"#!/bin/bash\ntrap '' TERM INT HUP\necho $$ >{pid}\nwhile true; do echo a line; sleep 0.1; done\n"
    with monitor(tmp_path, job, deaf) as process:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
        end = time.monotonic() + 5
        try:
            while Path(f"/proc/{pid.read_text().strip()}").exists():
                assert time.monotonic() < end, "nvidia-smi is left behind"
                time.sleep(0.1)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_signal_before_the_first_look_leaves_no_reports(tmp_path: Path, job: str) -> None:
    """The job may end while the folder is being made: here the lock's program sends the signal."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "flock").write_text(f"#!/bin/bash\nprintf '%s' '{REPORT}' >{reports(job)}/@0\nkill -TERM $PPID\n")
    (programs / "flock").chmod(0o755)
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": job, "SLURMD_NODENAME": "n1"}
    argv = [str(BIN / "gpu-monitor.sh"), str(tmp_path), "pucmt", "DT", "5"]
    try:
        assert subprocess.run(argv, env=env, timeout=60, start_new_session=True, check=False).returncode == 0
        assert not reports(job).exists()
        (spent,) = tmp_path.glob("*.spent")
        assert len(spent.read_text().splitlines()) == 1
    finally:
        shutil.rmtree(reports(job), ignore_errors=True)


def test_what_a_killed_collector_left_goes_with_the_next_one(tmp_path: Path, job: str) -> None:
    """Where nobody holds its lock: another job of the same user may be at work."""
    dead, busy, young = (reports(f"{job}{number}") for number in range(3))
    try:
        for folder in (dead, busy, young):
            folder.mkdir(mode=0o700)
            (folder / "@0").write_text(REPORT)
        for folder in (dead, busy):
            os.utime(folder, (time.time() - 3600,) * 2)
        with subprocess.Popen(["flock", str(busy), "sleep", "600"], start_new_session=True) as holder:
            try:
                with monitor(tmp_path, job):
                    assert [folder.exists() for folder in (dead, busy, young)] == [False, True, True]
            finally:
                os.killpg(holder.pid, signal.SIGKILL)
    finally:
        for folder in (dead, busy, young):
            shutil.rmtree(folder, ignore_errors=True)


def test_c2_who_took_the_folder_of_the_reports_is_named(tmp_path: Path) -> None:
    """The stall watch was off silently: another user had made the folder for the next numbers of jobs."""
    lab = BatchLab(tmp_path)
    for name in ("bin", "lib"):
        shutil.copytree(laid_out.RUN / name, lab.run_dir / name)
    # A plain job has no sampler, for which the task would go on.
    (lab.run_dir / "bin/sample-ranks.sh").unlink()
    folder = Path(f"/dev/shm/kit-{os.geteuid()}-taken-by-test")
    # A link is never taken for the folder, whoever made it.
    folder.symlink_to(tmp_path)
    try:
        env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "taken-by-test", "SLURMD_NODENAME": "n2"}
        shell.run(["bash", str(lab.run_dir / "bin/gpu-monitor.sh"), str(tmp_path), "u", "", "1"], env=env, timeout=60)
    finally:
        folder.unlink()
    said = lab.bash("KIT_RESTART_COUNT=0 stall_watch::say_taken; stall_watch::say_taken")
    assert len(said) == 1
    assert f"node n2: {folder} belongs to" in said[0]
    (event,) = (json.loads(line) for line in (lab.run_dir / "state/events.jsonl").read_text().splitlines())
    assert (event["event"], event["node"]) == ("unwatched", "n2")
