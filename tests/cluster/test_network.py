"""Slurm's commands as an unreliable network: wrappers around the real ones, as sites and busy controllers make them.

Each wrapper stands first in PATH. It leaves the batch script's own requests alone, so that a count is one of the kit's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import shell
from kit.slurm.embedded import daemons
from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab, Run, came

pytestmark = pytest.mark.cluster

JOB = 'shape = "srun"\nscript = "program.py"\n[resources]\nnodes = 1\ngpus_per_node = 1\n'
PROGRAM = 'import os, pathlib, time\nrun = pathlib.Path(os.environ["KIT_RUN_DIR"])\n'
WAITS = f'{PROGRAM}while not (run / "finish").exists():\n    time.sleep(0.1)\n'

# What a site's wrapper does; REAL is the program, and `$n` the number of the call.
BANNER = "echo 'Maintenance on 1 December, 8:00 to 18:00.'; echo '7 | of | 12 nodes'\n"
TIMED_OUT = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
WRAPPERS = {
    "banner before": f'{BANNER}exec REAL "$@"',
    "banner after": f'REAL "$@"; code=$?; {BANNER}exit $code',
    "slow": 'sleep 1; exec REAL "$@"',
    "fails now and then": 'if ((n % 2)); then echo "Socket timed out on send/recv operation" >&2; exit 1; fi\nexec REAL "$@"',
}


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A project on a cluster of one node whose controller a test may kill."""
    project = tmp_path_factory.mktemp("net")
    with lab_on("net", 1, project / "store", project) as lab:
        lab.write(JOB, PROGRAM)
        yield lab


def wrapped(folder: Path, script: str, *tools: str) -> dict[str, str]:
    """The environment in which these of Slurm's commands are a script."""
    folder.mkdir(exist_ok=True)
    for tool in tools:
        real = shell.which(tool)
        assert real is not None
        head = f'#!/bin/bash\n[[ -z "${{SLURM_JOB_ID:-}}" ]] || exec {real} "$@"\n'
        if tool == "sbatch":
            head += f'case " $* " in *" --test-only "* | *" --version "*) exec {real} "$@" ;; esac\n'
        head += f'n=$(($(cat {folder}/{tool}.calls 2>/dev/null || echo 0) + 1)); echo "$n" >{folder}/{tool}.calls\n'
        (folder / tool).write_text(f"{head}{script.replace('REAL', real)}\n")
        (folder / tool).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_run_ends_well_and_is_listed(net: Lab, tmp_path: Path, kind: str) -> None:
    env = wrapped(tmp_path / "bin", WRAPPERS[kind], "squeue", "scontrol", "sacct", "sinfo")
    done = net.kit("submit", "--cluster", net.cluster.name, "--no-container", "--wait", env=env)
    run = Path(done.stdout.splitlines()[0])
    assert "end of job" in (run / "logs" / "batch.log").read_text()
    listed = json.loads(net.kit("runs", "--json", env=env).stdout)
    assert {one["run"]: one["state"] for one in listed}[run.name] == "COMPLETED"
    assert json.loads(net.kit("status", run.name, "--json", env=env).stdout)["state"] == "COMPLETED"
    assert "it ended well" in net.kit("why", run.name, env=env).stdout


def stop_controller(lab: Lab) -> None:
    """End slurmctld as a restart does: it saves its state."""
    pid = int((lab.cluster.folder / "slurmctld.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    assert came(lambda: not Path(f"/proc/{pid}/stat").exists() or ") Z " in Path(f"/proc/{pid}/stat").read_text())


def start_controller(lab: Lab) -> None:
    """Start slurmctld again, with its state."""
    layout = lab.cluster.layout
    env = {"PATH": os.environ["PATH"], "HOME": "/root", "KIT_CLUSTER_FOLDER": str(layout.folder), **lab.cluster.env()}
    shell.daemon([daemons.program("slurmctld"), "-D"], log=layout.console("slurmctld"), env=env, cwd=layout.folder)
    lab.wait_nodes()


@pytest.mark.slow
def test_a_controller_that_restarts_during_a_wait(net: Lab) -> None:
    """The run continues without it, and so does the wait."""
    net.write(JOB, WAITS)
    ended: list[Run] = []
    waiting = threading.Thread(target=lambda: ended.append(net.run("--no-container")))
    before = set(runs_of(net))
    waiting.start()
    assert came(lambda: any((run / "state" / "events.jsonl").exists() for run in set(runs_of(net)) - before))
    (run,) = set(runs_of(net)) - before
    net.wait_state(run, "RUNNING")
    stop_controller(net)
    try:
        asked = shell.run(["squeue"], env={**os.environ, **net.cluster.env()}, check=False, timeout=120)
        assert asked.returncode != 0, "the controller is gone"
    finally:
        start_controller(net)
    (run / "finish").touch()
    waiting.join()
    (of,) = ended
    assert of.done.returncode == 0, of.done.stderr
    assert of.done.stderr.count("does not answer") <= 1, of.done.stderr
    assert net.wait_end(run)["JobState"] == "COMPLETED"


def runs_of(lab: Lab) -> list[Path]:
    """The run folders of a project."""
    return [path for path in (lab.project / "runs").glob("test-*") if path.is_dir()]


# Takes the job, and answers in another way than sbatch does.
TAKEN = {
    "lost": f'REAL "$@" >/dev/null; {TIMED_OUT}',
    "between a site's lines": f'{BANNER}REAL "$@"; {BANNER}',
    "twice": 'REAL "$@"; REAL "$@"',
}


@pytest.mark.parametrize("kind", TAKEN)
def test_a_job_whose_answer_is_lost_or_noisy_is_waited_for(net: Lab, tmp_path: Path, kind: str) -> None:
    """It said that nothing was submitted, removed the run folder, and left the job."""
    net.write(f'{JOB}[slurm]\nextra = ["--comment=project:42"]\n', PROGRAM)
    env = wrapped(tmp_path / "bin", TAKEN[kind], "sbatch")
    done = net.kit("submit", "--cluster", net.cluster.name, "--no-container", "--wait", env=env)
    run = Path(done.stdout.splitlines()[0])
    assert net.wait_end(run)["JobState"] == "COMPLETED"
    comments = net.slurm("squeue", "--noheader", "--states=all", "--format=%A|%T|%o|%k").splitlines()
    mine = [line for line in comments if str(run) in line]
    assert [line.split("|")[1] for line in mine if "CANCELLED" not in line] == ["COMPLETED"]
    assert all("|project:42 kit:" in line for line in mine)
    assert not (run / "state" / "submission.json").exists()


def test_a_sweep_whose_answer_is_lost(net: Lab, tmp_path: Path) -> None:
    net.write(f"{JOB}[sweep.grid]\nenv.POINT = [1, 2]\n", PROGRAM)
    env = wrapped(tmp_path / "bin", TAKEN["lost"], "sbatch")
    done = net.kit("sweep", "--cluster", net.cluster.name, "--no-container", "--wait", env=env)
    folder = Path(done.stdout.splitlines()[-1])
    assert json.loads((folder / "sweep.json").read_text())["arrays"][0]["job_id"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_submit_that_is_ended_between_the_job_and_its_answer(
    net: Lab, tmp_path: Path, number: signal.Signals
) -> None:
    """After a Ctrl-C the number is recorded all the same; after a KILL the next command finds the job by its mark."""
    net.write(JOB, WAITS)
    env = wrapped(tmp_path / "bin", f'REAL "$@" >{tmp_path}/answer; sleep 3; cat {tmp_path}/answer', "sbatch")
    argv = [sys.executable, "-m", "kit", "submit", "--cluster", net.cluster.name, "--no-container"]
    before = set(runs_of(net))
    sending = subprocess.Popen(argv, cwd=net.project, env={**os.environ, **net.env, **env}, stderr=subprocess.PIPE)
    assert came(lambda: (tmp_path / "answer").exists() and (tmp_path / "answer").read_text())
    sending.send_signal(number)
    said = sending.communicate()[1].decode()
    assert sending.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), said
    (run,) = set(runs_of(net)) - before
    try:
        status = net.status(run)
        assert status["job_id"] == int((tmp_path / "answer").read_text())
        assert not (run / "state" / "submission.json").exists()
        assert number == signal.SIGKILL or "the job was submitted" in said
    finally:
        (run / "finish").touch()
    net.wait_end(run)


def test_ended_runs_are_explained_without_slurm(net: Lab, tmp_path: Path) -> None:
    """No request is made, and the answer is the one of before."""
    net.write(JOB, f"{PROGRAM}raise SystemExit(3)\n")
    run = net.run("--no-container").folder
    before = [net.status(run)["state"], net.kit("why", run.name).stdout]
    env = wrapped(tmp_path / "bin", "exit 1", "squeue", "scontrol", "sinfo")
    shown = json.loads(net.kit("status", run.name, "--json", env=env).stdout)
    assert [shown["state"], net.kit("why", run.name, env=env).stdout] == before == ["FAILED", before[1]]
    listed = json.loads(net.kit("runs", "--json", env=env).stdout)
    assert {one["run"]: one["state"] for one in listed}[run.name] == "FAILED"
    assert [path.name for path in (tmp_path / "bin").glob("*.calls")] == []


def test_what_slurm_does_not_tell_is_said(net: Lab, tmp_path: Path) -> None:
    net.write(JOB, WAITS)
    run = net.submit("--no-container")
    net.wait_state(run, "RUNNING")
    env = wrapped(tmp_path / "bin", 'echo "Unable to contact slurm controller" >&2; exit 1', "squeue")
    shown = net.kit("status", run.name, "--json", env=env)
    assert json.loads(shown.stdout)["state"] == "UNKNOWN"
    assert shown.stderr.count("Unable to contact slurm controller") == 1
    (run / "finish").touch()
    assert net.wait_end(run)["JobState"] == "COMPLETED"
