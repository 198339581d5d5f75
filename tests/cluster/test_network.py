"""Slurm's commands as an unreliable network: wrappers around the real ones, as sites and busy controllers make them.

Each wrapper stands first in PATH. It leaves the batch script's own requests alone, so that a count is one of the kit's.
"""

from __future__ import annotations

import json
import os
import signal
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
