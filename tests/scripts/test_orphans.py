"""A task whose slurmstepd is killed: it ends, and its rank is on record as killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kit import shell
from tests.cluster.image_lab import needs_root
from tests.scripts.batch_lab import LIB
from tests.scripts.test_worker import JOB, TASK, run_folder

SLEEPS = "import os, subprocess, sys, time\nsubprocess.Popen(['sleep', '600'])\nopen('{up}', 'w').write('1')\ntime.sleep({s})\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = run_folder(tmp_path, JOB, "shape=srun")
    (run / "state" / "failures").mkdir()
    return run


def start(
    run: Path, seconds: int, name: str = "slurmstepd", *, program: str = SLEEPS, inside: tuple[str, ...] = ()
) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A process of this name whose task is worker.sh; the numbers of the task's processes, once its program is up."""
    up = run / "up"
    (run.parent / "job" / "look.py").write_text(program.format(up=up, s=seconds))
    stepd = run / name
    stepd.write_text(f"#!/bin/bash\n{run}/worker.sh &\nwait\n")
    stepd.chmod(0o755)
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    env = {
        "PATH": os.environ["PATH"], **TASK, "SLURM_STEP_ID": "0", "KIT_FAILURES": "failures", "MARK": mark,
    }  # fmt: skip
    process = subprocess.Popen([*inside, str(stepd)], env=env, start_new_session=True)
    end = time.monotonic() + 60
    while not up.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    return process, marked(mark)


def marked(mark: str) -> list[int]:
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"MARK={mark}".encode() in (proc / "environ").read_bytes().split(b"\0"):
                found.append(int(proc.name))
    return found


def alive(pids: list[int]) -> list[int]:
    """Those that are there and no zombies."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(pid)
    return found


def test_a_killed_slurmstepd_ends_its_task_and_is_on_record(folder: Path) -> None:
    process, pids = start(folder, 600)
    assert len(pids) >= 4, "slurmstepd, the rank's shell, the watch, the program and what it started"
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    end = time.monotonic() + 60
    try:
        while alive(pids):
            assert time.monotonic() < end, f"the task runs on without its slurmstepd: {alive(pids)}"
            time.sleep(0.1)
    finally:
        for pid in alive(pids):
            os.kill(pid, signal.SIGKILL)
    assert (folder / "state" / "failures" / "rank-2.137.alone").exists()
    assert (
        "slurmstepd, by which Slurm runs the ranks of a node, is gone" in (folder / "logs" / "rank-2.log").read_text()
    )


def test_a_task_that_is_killed_with_its_slurmstepd_is_on_record(folder: Path) -> None:
    """As bubblewrap does it: only the program is left, which nobody waits for."""
    process, pids = start(folder, 600)
    shell = next(pid for pid in pids if "/bin/rank.sh" in Path(f"/proc/{pid}/cmdline").read_text())
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    os.kill(shell, signal.SIGKILL)
    end = time.monotonic() + 60
    try:
        while alive(pids):
            assert time.monotonic() < end, alive(pids)
            time.sleep(0.1)
    finally:
        for pid in alive(pids):
            os.kill(pid, signal.SIGKILL)
    assert (folder / "state" / "failures" / "rank-2.137.alone").exists()


# What Slurm leaves of a container whose FUSE daemons it has ended: no path below /dev and /proc leads anywhere.
LOSES_ITS_FILES = """\
import os, subprocess, time
open('{up}', 'w').write('1')
while not os.path.exists('{up}-lose'):
    time.sleep(0.1)
for folder in ('/dev', '/proc'):
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'ro', 'none', folder], check=True)
os.kill(os.getpid(), 9)
"""


@needs_root
@pytest.mark.parametrize("killed", [False, True], ids=["lives", "is-gone"])
def test_a_rank_that_loses_its_files_knows_of_its_slurmstepd(folder: Path, killed: bool) -> None:
    """It took every such end for one of its slurmstepd: the redirection to /dev/null failed, and nothing was read."""
    inside = ("unshare", "--mount", "--propagation=private")
    process, pids = start(folder, 0, program=LOSES_ITS_FILES, inside=inside)
    (rank,) = (pid for pid in pids if "/bin/rank.sh" in Path(f"/proc/{pid}/cmdline").read_text())
    if killed:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    (folder / "up-lose").touch()
    end = time.monotonic() + 30
    try:
        while alive([rank]):
            assert time.monotonic() < end
            time.sleep(0.1)
    finally:
        for pid in alive(pids):
            os.kill(pid, signal.SIGKILL)
        process.wait(10)
    assert (folder / "state" / "failures" / "rank-2.137.alone").exists()
    log = (folder / "logs" / "rank-2.log").read_text()
    assert ("slurmstepd, by which Slurm runs the ranks of a node, is gone" in log) is killed, log


def test_the_watch_ends_with_its_task_and_holds_nothing(folder: Path) -> None:
    """What a program leaves behind (its `sleep` here) does not keep the watch: it would keep the step from ending."""
    process, pids = start(folder, 1)
    try:
        assert process.wait(60) == 0
        end = time.monotonic() + 3
        while len(left := alive(pids)) > 1:
            assert time.monotonic() < end, left
            time.sleep(0.05)
        assert Path(f"/proc/{left[0]}/comm").read_text() == "sleep\n"
    finally:
        for pid in alive(pids):
            os.kill(pid, signal.SIGKILL)
    assert not list((folder / "state" / "failures").iterdir())


def test_without_a_slurmstepd_nothing_is_watched(folder: Path) -> None:
    """Such as in a PID namespace."""
    process, pids = start(folder, 600, name="other")
    try:
        assert not any("KIT_SLURMSTEPD=" in Path(f"/proc/{pid}/environ").read_text() for pid in pids)
        assert len(pids) == 4
    finally:
        for pid in alive(pids):
            os.kill(pid, signal.SIGKILL)
        process.wait(10)


@pytest.mark.parametrize(("looks", "says"), [("1 0", "lives"), ("1 1", "lost"), ("0", "lives")])
def test_one_look_that_fails_is_no_lost_slurmstepd(looks: str, says: str) -> None:
    """A machine that is out of memory or of file numbers fails a look at /proc, and the task was ended for it."""
    script = f"""
source {LIB}/orphans.sh
looks=({looks})
orphans::is_slurmstepd() {{ local look="${{looks[0]}}"; looks=("${{looks[@]:1}}"); return "${{look}}"; }}
orphans::collect() {{ :; }}
orphans::say() {{ said=lost; }}
failures::record() {{ :; }}
exec {{KIT_TASK_FD}}> >(orphans::loop 1 0 >&2; echo "${{said:-lives}}" >&2)
sleep 7
orphans::ended
exec {{KIT_TASK_FD}}>&-
wait
"""
    done = shell.run(["bash", "-c", script], env={"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7"}, check=False)
    assert done.stderr.split()[-1] == says
