"""`kit shell`, and the batch script run by hand, on a real terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.terminal import Terminal, terminal

pytestmark = pytest.mark.cluster

WAIT = """
import os, pathlib, signal, sys, time
run = pathlib.Path(os.environ["KIT_RUN_DIR"])
def save(number, _frame):
    (run / f"saved-{os.environ['RANK']}").touch()
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, save)
(run / f"up-{os.environ['RANK']}").touch()
while not (run / "finish").exists():
    time.sleep(0.1)
"""
DEAF = WAIT.replace("SIGTERM, save", "SIGTERM, signal.SIG_IGN if os.environ['RANK'] == '1' else save")
JOB = """script = "program.py"
shape = "srun"
python = "/usr/bin/python3"
[preflight]
free_disk_gb = 0
[env]
MY_OWN = "of the job"
"""


@contextmanager
def kit(lab: Lab, *words: str, env: dict[str, str] | None = None) -> Iterator[Terminal]:
    argv = [sys.executable, "-m", "kit", *words]
    with terminal(argv, cwd=lab.project, env={**os.environ, **lab.env, "TERM": "dumb", **(env or {})}) as screen:
        yield screen


def newest_run(lab: Lab) -> Path:
    return max((lab.project / "runs").glob("test-*"), key=lambda p: p.stat().st_mtime)


def test_shell_in_an_allocation_of_its_own(lab: Lab, runtime_of: Callable[[str], list[str]], runtime: str) -> None:
    lab.write(JOB + '[secrets]\nenv = ["API_KEY"]\n', WAIT)
    options = runtime_of(runtime)
    with kit(lab, "shell", "--cluster", lab.cluster.name, *options, env={"API_KEY": "canary"}) as screen:
        screen.expect("shell in the job's container")
        screen.type("echo [$MY_OWN] [$API_KEY] [$PWD] [$KIT_CHECKPOINT_DIR] [$(tty)] [${SLURMD_NODENAME}]\n")
        inside = "/workspace" if runtime != "bare" else str(lab.project)
        run_dir = "/kit/run" if runtime != "bare" else r"\S+/runs/test-\S+"
        screen.expect(
            rf"\[of the job\] \[canary\] \[{inside}\] \[{run_dir}/checkpoints\] \[/dev/\S+\] \[{lab.cluster.nodes[0].name}\]"
        )
        screen.type(
            "echo [$RANK/$WORLD_SIZE/$SLURM_NTASKS/$SLURM_NTASKS_PER_NODE/$SLURM_JOB_NAME/${MASTER_PORT:+port}]\n"
        )
        screen.expect(r"\[0/1/1/1/interactive/port\]")
        run = newest_run(lab)
        screen.type("exit 3\n")
        assert screen.code() == 3
    # It waited for ever.
    assert (lab.status(run)["state"], lab.status(run)["exit_code"]) == ("FAILED", 3)
    lab.wait(lambda: "test" not in lab.slurm("squeue", "--noheader", "--format=%j").split(), run)
    assert lab.settled(run) == []


@pytest.mark.parametrize(
    "runtime", ["bubblewrap", *(pytest.param(name, marks=pytest.mark.faults) for name in ("pyxis", "enroot", "bare"))]
)
def test_the_terminal_of_a_shell_is_closed(lab: Lab, runtime_of: Callable[[str], list[str]], runtime: str) -> None:
    """The window is gone and what ran in the shell is still there: the allocation and all of it end."""
    lab.write(JOB + '[secrets]\nenv = ["API_KEY"]\n', WAIT)
    with kit(lab, "shell", "--cluster", lab.cluster.name, *runtime_of(runtime), env={"API_KEY": "canary"}) as screen:
        screen.expect("shell in the job's container")
        run = newest_run(lab)
        screen.type("sleep 600 & touch $KIT_RUN_DIR/up; sleep 601\n")
        lab.wait((run / "up").exists, run)
        assert (run / ".secrets").exists()
        screen.hang_up()
        screen.code()
    lab.wait(lambda: "test" not in lab.slurm("squeue", "--noheader", "--format=%j").split(), run)
    assert lab.settled(run) == []


def test_shell_beside_a_run(lab: Lab, runtime_of: Callable[[str], list[str]], runtime: str) -> None:
    lab.write(JOB, WAIT)
    run = lab.submit(*runtime_of(runtime))
    lab.wait(lambda: len(list(run.glob("up-*"))) == 4, run)
    second = lab.cluster.nodes[1].name
    with kit(lab, "shell", "--attach", run.name, "--node", second) as screen:
        screen.expect("shell in the job's container")
        screen.type("echo [$MY_OWN] [$SLURMD_NODENAME] [$(ls $KIT_RUN_DIR/up-* | wc -l)]\n")
        screen.expect(rf"\[of the job\] \[{second}\] \[4\]")
        # The image is read-only, and so is the HOME of its user.
        screen.type("touch $HOME/.kit-probe && echo [kept $((40 + 2))]; rm $HOME/.kit-probe\n")
        screen.expect(r"\[kept 42\]")
        # Ctrl-C is the shell's own here, and none of the job's business.
        screen.type("sleep 60\n")
        time.sleep(0.5)
        screen.type("\x03")
        screen.type("echo still [$MY_OWN]\nexit\n")
        screen.expect(r"still \[of the job\]")
        assert screen.code() in {0, 130}
    (run / "finish").touch()
    assert lab.wait_end(run)["JobState"] == "COMPLETED"
    assert lab.settled(run) == []


def test_attach_needs_a_running_job(lab: Lab) -> None:
    lab.write(JOB, "print('done')\n")
    run = lab.run().folder
    done = lab.kit("shell", "--attach", run.name, check=False)
    assert done.returncode == 7
    assert "only a running job has nodes to go to" in done.stderr


@contextmanager
def by_hand(lab: Lab, program: str = WAIT, *, step: Sequence[str] = ()) -> Iterator[tuple[Terminal, Path]]:
    """The batch script of a run that was not submitted, started by hand inside an allocation of salloc, or in a step of it."""
    lab.write(JOB, program)
    run = lab.submit("--set", 'slurm.extra=["--begin=now+3600"]')
    lab.slurm("scancel", lab.job(run)["JobId"])
    env = {**os.environ, **lab.cluster.env()}
    with terminal(
        [
            "salloc",
            "--nodes=2",
            "--ntasks-per-node=2",
            "--cpus-per-task=2",
            "--gpus-per-node=2",
            *step,
            "bash",
            "--norc",
        ],
        cwd=lab.project,
        env=env,
    ) as screen:
        screen.expect("Nodes .* are ready|Granted job allocation")
        screen.type(f"PS1=; {run}/batch.sh; echo code=$?=\n")
        yield screen, run


def test_batch_script_by_hand(lab: Lab) -> None:
    with by_hand(lab) as (screen, run):
        lab.wait(lambda: len(list(run.glob("up-*"))) == 4, run)
        (run / "finish").touch()
        assert screen.expect(r"code=(\d+)=")[1] == "0"
        screen.type("exit\n")
        assert screen.code() == 0
    assert lab.settled(run) == []


def test_batch_script_in_an_interactive_step(lab: Lab) -> None:
    """`srun --pty` holds CPUs, memory and GPUs, and its variables look like those of a task."""
    with by_hand(lab, step=["srun", "--pty", "--nodes=1", "--ntasks=1"]) as (screen, run):
        screen.expect("interactive: step variables reset")
        lab.wait(lambda: len(list(run.glob("up-*"))) == 4, run)
        (run / "finish").touch()
        assert screen.expect(r"code=(\d+)=")[1] == "0"
        screen.type("exit\n")
        assert screen.code() == 0
    assert lab.settled(run) == []


def test_ctrl_c_by_hand(lab: Lab) -> None:
    """The ranks save and end; the allocation stays the user's."""
    with by_hand(lab) as (screen, run):
        lab.wait(lambda: len(list(run.glob("up-*"))) == 4, run)
        screen.type("\x03")
        assert screen.expect(r"code=(\d+)=")[1] == "143"
        assert len(list(run.glob("saved-*"))) == 4
        assert lab.settled(run, seconds=10) == [] or all(
            "bash" in left or "salloc" in left for left in lab.leftovers(run)
        )
        screen.type("echo allocation [$(squeue -h -j $SLURM_JOB_ID -o %T)]\nexit\n")
        screen.expect(r"allocation \[RUNNING\]")
        screen.code()
    assert lab.settled(run) == []


def test_a_second_ctrl_c_by_hand_does_not_wait(lab: Lab) -> None:
    """Rank 1 does not listen; the first Ctrl-C gives it 30 s, the second none."""
    with by_hand(lab, DEAF) as (screen, run):
        lab.wait(lambda: len(list(run.glob("up-*"))) == 4, run)
        screen.type("\x03")
        lab.wait(lambda: len(list(run.glob("saved-*"))) == 3, run)
        screen.type("\x03")
        screen.expect("Ctrl-C came twice")
        assert screen.expect(r"code=(\d+)=", seconds=25)[1] == "143"
        screen.type("exit\n")
        screen.code()
    assert lab.settled(run) == []


def test_batch_script_needs_an_allocation(lab: Lab) -> None:
    from kit import shell

    lab.write(JOB, WAIT)
    run = lab.submit("--set", 'slurm.extra=["--begin=now+3600"]')
    lab.slurm("scancel", lab.job(run)["JobId"])
    done = shell.run([str(run / "batch.sh")], env={"PATH": os.environ["PATH"]}, check=False)
    assert done.returncode == 2
    assert "runs under sbatch, or by hand inside an allocation" in done.stderr
