"""The fault matrix: what goes wrong, and for each fault the exit code, the job's state, the named cause, and that nothing is left.

`make faults` runs every fault in every start shape and container runtime that this machine has; `make test` each fault once.
docs/concepts/faults.md says the same in words.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from kit import shell
from tests.cluster.image_lab import needs_root
from tests.cluster.lab import Lab, Process, job_id, slurmstepds
from tests.support import REPO

pytestmark = pytest.mark.cluster

PROGRAM = Path(__file__).with_name("faulty.py").read_text(encoding="utf-8")
QUICK = "[preflight]\nfree_disk_gb = 0\n"
# KIT_FAULTS_WARM=1 forks the ranks of every fault from a warm process, here and in tests/soak.py.
WARM = ("--set", 'retry.warm=["json"]') if os.environ.get("KIT_FAULTS_WARM") else ()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault and its defined end.

    how, rank: of faulty.py. act: what the test does once all ranks are up.
    why: rule and verdict of `kit why`.
    code: what the run recorded; None: it could not. state: Slurm's. says: a pattern that the batch log holds.
    saved: ranks that had the time to save. once: the (shape, runtime) in which `make test` shows it.
    """

    once: tuple[str, str]
    why: tuple[str, str]
    says: str
    code: int | None
    state: str = "FAILED"
    how: str = "wait"
    rank: int = 1
    job: str = ""
    act: Callable[[Lab, Path], object] = lambda _lab, _run: None
    tools: dict[str, str] = field(default_factory=dict)
    ranks_start: bool = True
    saved: int | None = None


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def cancel(lab: Lab, run: Path) -> None:
    lab.kit("cancel", run.name)


def usr1(lab: Lab, run: Path) -> None:
    """What Slurm sends at the lead time; test_the_lead_signal_by_slurm_itself waits for it."""
    lab.slurm("scancel", "--batch", "--signal=USR1", str(lab.job(run)["JobId"]))


def out_of_time(lab: Lab, run: Path) -> None:
    """Slurm counts limits in minutes; an administrator may move the end, but not to what is past when the controller reads it."""
    lab.slurm("scontrol", "update", f"JobId={lab.job(run)['JobId']}", "EndTime=now+5")


def finish(_lab: Lab, run: Path) -> None:
    (run / "finish").touch()


def kill_monitor(lab: Lab, run: Path) -> None:
    """The task and its nvidia-smi: the collector of reports would outlive that one."""
    for one in lab.processes(run):
        if "nvidia-smi" in one.line or (one.argv[0].endswith("bash") and "/gpu-monitor.sh" in one.line):
            with contextlib.suppress(ProcessLookupError):
                kill(one.pid)
    lab.wait(lambda: "kit-monitor" not in lab.slurm("squeue", "--steps", "--format=%j"), run)
    finish(lab, run)


def kill_stepd(lab: Lab, run: Path) -> None:
    """Of the ranks of one node."""
    kill(slurmstepds(lab, run, "train")[-1])


def kill_daemon_and_stepd(lab: Lab, run: Path) -> None:
    """What an administrator's `killall -9 slurmd slurmstepd` does to the second node, whose daemon starts again."""
    node = lab.cluster.nodes[1].name
    for one in lab.node_processes(node):
        if one.line.startswith("slurmstepd: [") or (one.argv[0].endswith("slurmd") and "-N" in one.argv):
            kill(one.pid)
    lab.restart_slurmd(node)


def kill_batch_stepd(lab: Lab, run: Path) -> None:
    (batch,) = slurmstepds(lab, run, "batch")
    kill(batch)
    finish(lab, run)


LIST = "--list-gpus) printf 'GPU 0: x\\nGPU 1: x\\n';; "
DMON = 'case "$1" in ' + LIST + 'dmon) echo "#args $*"; while true; do echo line; sleep 0.2; done;; esac'
DEAF_DMON = 'trap "" TERM INT HUP USR1; case "$1" in ' + LIST + "dmon) while true; do echo line; sleep 0.2; done;; esac"
HEALTHY = 'case "$1" in ' + LIST + "esac"
# Until the preflight's own time is up; nvidia-smi would be given up after ten seconds.
STUCK = 'touch "{marker}"; sleep 600'

FAULTS = {
    "rank-exits": Fault(
        once=("torchrun", "pyxis"),
        why=("exit-code", "fix the code"),
        how="exit",
        code=7,
        says="rank 1 on node .* failed first, with exit code 7",
    ),
    "rank-killed": Fault(
        once=("srun", "bubblewrap"),
        why=("killed", "try again"),
        how="kill",
        code=137,
        says="rank 1 on node .* failed first, with exit code 137",
    ),
    "rank-hangs": Fault(
        once=("srun", "bubblewrap"),
        why=("time-limit-unsaved", "fix the job"),
        how="deaf",
        act=usr1,
        job="[slurm]\nlead = 10\n",
        code=138,
        saved=3,
        says="the ranks did not end within 5 s after USR1",
    ),
    "rank-ignores-term": Fault(
        once=("torchrun", "bubblewrap"),
        why=("cancelled", "nothing to do"),
        how="deaf",
        act=cancel,
        job="[slurm]\ngrace = 5\n",
        code=143,
        state="CANCELLED",
        saved=3,
        says="the ranks did not end within 5 s after TERM",
    ),
    "batch-killed": Fault(
        once=("srun", "pyxis"),
        why=("batch-killed", "bad node"),
        act=lambda lab, run: kill(lab.batch(run).pid),
        code=None,
        says="",
    ),
    "srun-killed": Fault(
        once=("srun", "bubblewrap"),
        why=("srun-failed", "try again"),
        act=lambda lab, run: kill(lab.srun(run).pid),
        code=137,
        says="with 137, and no rank recorded why|failed first",
    ),
    "stepd-killed": Fault(
        once=("srun", "pyxis"),
        why=("stepd-killed", "bad node"),
        act=kill_stepd,
        code=137,
        says="failed first, with exit code 137",
    ),
    "slurmd-and-stepd-killed": Fault(
        once=("srun", "bare"),
        why=("stepd-killed", "bad node"),
        act=kill_daemon_and_stepd,
        code=137,
        says="failed first, with exit code 137",
    ),
    "batch-stepd-killed": Fault(
        once=("srun", "bare"),
        # The ranks ended well: the record in the run folder counts, not what Slurm lost.
        why=("completed", "nothing to do"),
        act=kill_batch_stepd,
        code=0,
        state="CANCELLED",
        says="the batch script's slurmstepd is gone",
    ),
    "cancel": Fault(
        once=("srun", "pyxis"),
        why=("cancelled", "nothing to do"),
        act=cancel,
        code=143,
        state="CANCELLED",
        saved=4,
        says="got TERM",
    ),
    "scancel": Fault(
        once=("torchrun", "bubblewrap"),
        why=("cancelled-by-slurm", "nothing to do"),
        act=lambda lab, run: lab.slurm("scancel", lab.job(run)["JobId"]),
        code=143,
        state="CANCELLED",
        saved=4,
        says="got TERM",
    ),
    "cancel-in-preflight": Fault(
        once=("srun", "bubblewrap"),
        why=("cancelled", "nothing to do"),
        act=cancel,
        code=143,
        state="CANCELLED",
        says="got TERM",
        ranks_start=False,
        tools={"nvidia-smi": HEALTHY, "dmesg": STUCK},
    ),
    "lead-signal": Fault(
        once=("torchrun", "bubblewrap"),
        why=("time-limit-saved", "try again"),
        act=usr1,
        code=138,
        saved=4,
        says="the ranks ended after USR1",
    ),
    "time-limit": Fault(
        once=("srun", "bare"),
        why=("time-limit", "fix the job"),
        act=out_of_time,
        job="[slurm]\nlead = 0\n",
        code=143,
        state="TIMEOUT",
        saved=4,
        says="got TERM",
    ),
    "monitor-killed": Fault(
        once=("srun", "bare"),
        why=("completed", "nothing to do"),
        act=kill_monitor,
        tools={"nvidia-smi": DMON},
        code=0,
        state="COMPLETED",
        says="step kit-monitor had ended before, with 137",
    ),
    "monitor-never-ends": Fault(
        once=("srun", "bare"),
        why=("completed", "nothing to do"),
        act=finish,
        tools={"nvidia-smi": DEAF_DMON},
        code=0,
        state="COMPLETED",
        says="end of job",
    ),
}


def cells(once: tuple[str, str], *name: str) -> list[ParameterSet]:
    """Every start shape in every container runtime; all but `once` belong to `make faults`. Torch is in the image only."""
    return [
        pytest.param(
            (*name, shape, runtime),
            id="-".join((*name, shape, runtime)),
            marks=() if once == (shape, runtime) else pytest.mark.faults,
        )
        for shape in ("srun", "torchrun")
        for runtime in ("bubblewrap", "pyxis", "enroot", "bare")
        if not (shape == "torchrun" and runtime == "bare")
    ]


CELLS = [cell for name, fault in FAULTS.items() for cell in cells(fault.once, name)]
Cell = tuple[str, str]
RuntimeOf = Callable[[str], list[str]]


@pytest.mark.parametrize("cell", CELLS)
def test_fault(lab: Lab, runtime_of: RuntimeOf, tmp_path: Path, cell: tuple[str, str, str]) -> None:
    name, shape, runtime = cell
    fault = FAULTS[name]
    run = start(lab, fault, [*runtime_of(runtime), "--set", f"shape={shape}"], tmp_path)
    fault.act(lab, run)
    began = time.monotonic()
    job = lab.wait_end(run)
    took = time.monotonic() - began
    facts, log = lab.status(run), read(run, "batch")
    assert job["JobState"] == fault.state, log
    assert re.search(fault.says, log), log
    assert lab.settled(run) == []
    assert took < 60, f"the others end within seconds, not {took:.0f}"
    assert facts["exit_code"] == fault.code, log
    assert fault.saved is None or len(list(run.glob("saved-*"))) == fault.saved, "the ranks had the time to save"
    if fault.code is None:
        assert "the batch script was killed" in str(facts["reason"])
    assert fault.ranks_start or not list(run.glob("up-*"))
    said = why(lab, run)
    assert (said["rule"], said["verdict"]) == fault.why, said


def why(lab: Lab, run: Path) -> dict[str, Any]:
    """What `kit why` answers."""
    said: dict[str, Any] = json.loads(lab.kit("why", run.name, "--json").stdout)
    return said


def start(lab: Lab, fault: Fault, options: list[str], tmp_path: Path) -> Path:
    """Submit faulty.py and return once its ranks are up, or, where none will come up, once the preflight hangs."""
    lab.write(
        f'script = "program.py"\npython = "/usr/bin/python3"\nargs = ["{fault.how}", "{fault.rank}"]\n{QUICK}{fault.job}',
        PROGRAM,
    )
    marker = tmp_path / "stuck"
    for tool, script in fault.tools.items():
        path = tmp_path / tool
        path.write_text(f"#!/bin/bash\n{script.format(marker=marker) if 'marker' in script else script}\n")
        path.chmod(0o755)
    run = lab.submit(*options, *WARM, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    wait_up(lab, run) if fault.ranks_start else lab.wait(marker.exists, run)
    return run


def wait_up(lab: Lab, run: Path, *, start: int = 0) -> None:
    """Until all ranks of a start are up, or the run has ended."""
    lab.wait(lambda: len(list(run.glob(f"up-*-{start}"))) == 4 or '"end"' in read_events(run), run, seconds=90)


def read_events(run: Path) -> str:
    path = run / "state" / "events.jsonl"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def read(run: Path, name: str) -> str:
    path = run / "logs" / f"{name}.log"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def options_of(cell: Cell, runtime_of: RuntimeOf) -> list[str]:
    """The options of `kit submit` for a shape and a runtime."""
    return [*runtime_of(cell[1]), "--set", f"shape={cell[0]}"]


def write(lab: Lab, job: str, how: str = "wait", rank: int = 1) -> None:
    lab.write(
        f'script = "program.py"\nshape = "srun"\npython = "/usr/bin/python3"\nargs = ["{how}", "{rank}"]\n{QUICK}{job}',
        PROGRAM,
    )


@pytest.mark.pyxis
@pytest.mark.parametrize("runtime", ["pyxis", "enroot"])
@pytest.mark.parametrize("spares_daemons", [True, pytest.param(False, marks=pytest.mark.faults)])
def test_the_daemons_of_containers_whose_processes_are_all_killed(
    lab: Lab, runtime_of: RuntimeOf, runtime: str, spares_daemons: bool
) -> None:
    """It is the kit's choice of daemon that serves the image, and it ends with the container, whoever is killed."""
    write(lab, "")
    run = lab.submit(*runtime_of(runtime))
    wait_up(lab, run)
    of_job = f"SLURM_JOB_ID={job_id(run)}\0".encode()
    for node in lab.cluster.nodes:
        found = [one for one in lab.node_processes(node.name) if one.argv[0].startswith("squashfuse")]
        daemons = [one for one in found if of_job in one.environ]
        assert len(daemons) == (1 if runtime == "pyxis" else 2), daemons
        for daemon in daemons:
            program = Path(f"/proc/{daemon.pid}/exe").readlink().name
            assert program == "squashfuse_ll" or "kernel_cache" in daemon.line, (program, daemon.line)
            assert b"KIT_FUSE_DAEMON=1\0" in daemon.environ
    rank = next(one for one in lab.processes(run) if b"RANK=1\0" in one.environ)
    (step,) = re.findall(rb"SLURM_STEP_ID=\d+\0", rank.environ)
    of_step = [one for one in lab.processes(run) if step in one.environ]
    marked = [one for one in of_step if b"KIT_FUSE_DAEMON=1\0" in one.environ]
    assert len(marked) == (4 if runtime == "pyxis" else 8), "a daemon and its watcher"
    for one in of_step:
        if one not in marked or not spares_daemons:
            with contextlib.suppress(ProcessLookupError):
                kill(one.pid)
    lab.wait_end(run)
    assert lab.status(run)["exit_code"] == 137, read(run, "batch")
    assert lab.settled(run) == []


@pytest.mark.parametrize(
    "runtime", ["bare", "bubblewrap", pytest.param("pyxis", marks=pytest.mark.faults)], indirect=True
)
def test_lines_of_once_whose_slurmstepd_is_killed(lab: Lab, runtime: str, runtime_of: RuntimeOf) -> None:
    """Slurm would never end their step. In bubblewrap root's lines see no slurmstepd."""
    write(lab, "[once]\nlines = ['touch \"$KIT_RUN_DIR/once-up\"', 'trap \"\" TERM; sleep 600']\n")
    run = lab.submit(*runtime_of(runtime))
    lab.wait((run / "once-up").exists, run)
    (stepd,) = slurmstepds(lab, run, "kit-once")
    kill(stepd)
    assert lab.wait_end(run, seconds=60)["ExitCode"] == "137:0", read(run, "batch")
    assert "the lines of [once] ended with exit code 137; no rank was started" in read(run, "batch")
    assert "step kit-once is killed: slurmstepd, by which Slurm runs it, is gone" in read(run, "batch")
    assert (why(lab, run)["rule"], why(lab, run)["verdict"]) == ("stepd-killed", "bad node")
    assert lab.settled(run) == []
    assert not list(run.glob("up-*"))


# ---- restarts and requeues ----


def test_the_lead_signal_by_slurm_itself_requeues_up_to_the_cap(lab: Lab) -> None:
    """Slurm looks at limits every 30 s and sends the signal up to 30 s early, once; sent before there is a batch step it is lost.

    A lead as long as the limit allows that; one of 25 s leaves the job its first 5 s.
    """
    write(lab, '[resources]\ntime = "00:01:00"\n[slurm]\nlead = 25\n[retry]\nrequeue = 1\n')
    run = lab.submit()
    wait_up(lab, run)
    lab.wait((run / "saved-0-0").exists, run)
    lab.wait(lambda: lab.job(run)["Restarts"] == "1", run)
    # The second start is not about limits: within a minute's limit Slurm may signal it before its ranks are there.
    lab.slurm("scontrol", "update", f"JobId={lab.job(run)['JobId']}", "TimeLimit=10")
    wait_up(lab, run, start=1)
    job = lab.wait_end(run)
    log = read(run, "batch")
    assert (job["JobState"], job["Restarts"], lab.status(run)["exit_code"]) == ("COMPLETED", "1", 0), log
    assert "back to the queue (0 times so far)" in log, "the first start's log is kept"
    assert lab.settled(run) == []


def test_a_traceback_is_never_retried(lab: Lab) -> None:
    write(lab, "[retry]\nrequeue = 3\nin_allocation = 3\n", how="traceback")
    run = lab.run().folder
    assert (lab.job(run)["JobState"], lab.job(run)["Restarts"], lab.status(run)["exit_code"]) == ("FAILED", "0", 1)
    assert "exit code 1 is the program's own" in read(run, "batch")
    assert not list(run.glob("up-*-1"))


@pytest.mark.parametrize("shape", ["srun", pytest.param("torchrun", marks=pytest.mark.faults)])
def test_a_killed_rank_is_started_again_in_the_allocation(lab: Lab, shape: str) -> None:
    write(lab, "[retry]\nin_allocation = 2\n", how="kill")
    run = lab.run("--set", f"shape={shape}").folder
    assert lab.status(run)["exit_code"] == 0, read(run, "batch")
    assert (lab.job(run)["Restarts"], len(list(run.glob("up-*-1")))) == ("0", 4)
    died = min(float(p.read_text().split()[0]) for p in (run / "state" / "failures-0").rglob("rank-*"))
    began = min(float(p.read_text()) for p in run.glob("up-*-1"))
    print(f"from the rank's death to the first new rank: {began - died:.2f} s")
    assert lab.settled(run) == []


KILLS: dict[str, Callable[[Process], bool]] = {
    # What is killed of a rank's task: its shell alone, its shell and its program, and all of it, as the kernel does for memory
    # where the task is one cgroup.
    "shell": lambda one: "/bin/rank.sh" in one.line,
    "shell-and-program": lambda one: "/bin/rank.sh" in one.line or "program.py" in one.line,
    "whole-task": lambda _one: True,
}


def kill_task(lab: Lab, run: Path, rank: int, what: str) -> None:
    """Kill processes of a rank's task at once, but not Slurm's own."""
    mark = f"\0RANK={rank}\0".encode()
    found = [p for p in lab.processes(run) if mark in b"\0" + p.environ and b"KIT_FAILURES=" in p.environ]
    chosen = [p.pid for p in found if not p.line.startswith("slurmstepd") and KILLS[what](p)]
    assert chosen, [p.line for p in found]
    for pid in chosen:
        with contextlib.suppress(ProcessLookupError):
            kill(pid)


@pytest.mark.parametrize("cell", [cell for cell in cells(("srun", "bare")) if "torchrun" not in str(cell.id)])
@pytest.mark.parametrize(
    "what", ["whole-task", *(pytest.param(what, marks=pytest.mark.faults) for what in ("shell", "shell-and-program"))]
)
def test_a_rank_whose_shell_is_killed_failed_first(lab: Lab, runtime_of: RuntimeOf, what: str, cell: Cell) -> None:
    """It recorded nothing, and the record of a healthy rank that was ended for it was the only one: no restart."""
    write(lab, "[retry]\nin_allocation = 1\n")
    run = lab.submit(*options_of(cell, runtime_of))
    wait_up(lab, run)
    kill_task(lab, run, 1, what)
    lab.wait_end(run)
    log = read(run, "batch")
    assert re.search(r"rank 1 on node \S+ failed first, with exit code 137", log), log
    assert "the program's own" not in log
    assert (lab.status(run)["exit_code"], len(list(run.glob("up-*-1")))) == (0, 4), log
    assert lab.settled(run) == []


@pytest.mark.faults
def test_restarts_are_capped(lab: Lab) -> None:
    write(lab, "[retry]\nin_allocation = 1\n", how="again")
    run = lab.run().folder
    assert lab.status(run)["exit_code"] == 137
    assert (len(list(run.glob("up-*-1"))), len(list(run.glob("up-*-2")))) == (4, 0)


@pytest.mark.parametrize(
    "preempts",
    [("REQUEUE", 0, 60, 143), ("REQUEUE", 20, 0, 143), ("REQUEUE", 20, 60, 138), ("CANCEL", 20, 0, 143)],
    ids=["at-once", "with-grace", "told-by-USR1", "by-cancel"],
)
@pytest.mark.parametrize(
    "runtime", ["bubblewrap", *(pytest.param(name, marks=pytest.mark.faults) for name in ("pyxis", "enroot"))]
)
def test_preemption(
    preempting_lab: Lab, runtime_of: RuntimeOf, runtime: str, preempts: tuple[str, int, int, int]
) -> None:
    """A job of another partition takes the nodes; the ranks save, the job waits, and continues in its own folder.

    preempts: PreemptMode, GraceTime, lead, and the code of the ranks. The cluster has preempt_send_user_signal: within a grace the
    lead's signal comes instead of TERM. With CANCEL the kit queues the job again, and from 24.05 on Slurm calls it PREEMPTED
    whatever its next start ends with.
    """
    lab, (mode, grace, lead, code) = preempting_lab, preempts
    lab.slurm("scontrol", "update", "PartitionName=main", f"GraceTime={grace}", f"PreemptMode={mode}")
    write(lab, f'[slurm]\nrequeue = true\nlead = {lead}\n[secrets]\nenv = ["API_KEY"]\n')
    run = lab.submit(*runtime_of(runtime), env={"API_KEY": "canary"})
    wait_up(lab, run)
    lab.slurm("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 3")
    lab.wait(lambda: lab.job(run)["Restarts"] == "1", run)
    lab.wait(lambda: read(run, "batch").count(f"exit code {code}") >= 1, run)
    assert len(list(run.glob("saved-*"))) == 4, read(run, "batch")
    assert (run / ".secrets").exists()
    assert "failed first" not in read(run, "batch")
    wait_up(lab, run, start=1)
    job = lab.wait_end(run)
    facts = lab.status(run)
    assert (facts["state"], job["Restarts"], facts["exit_code"]) == ("COMPLETED", "1", 0), read(run, "batch")
    assert job["JobState"] == "COMPLETED" or mode == "CANCEL"
    assert why(lab, run)["rule"] == "completed"
    assert lab.settled(run) == []


@pytest.mark.parametrize("mode", ["CANCEL", "REQUEUE"])
def test_a_preempted_job_whose_ranks_end_with_0(preempting_lab: Lab, runtime_of: RuntimeOf, mode: str) -> None:
    """They may be done, or may have saved only: the run is not done, and from 24.05 on Slurm does not queue it again by itself."""
    lab = preempting_lab
    lab.slurm("scontrol", "update", "PartitionName=main", "GraceTime=20", f"PreemptMode={mode}")
    try:
        write(lab, "[slurm]\nrequeue = true\nlead = 0\n", how="well")
        run = lab.submit(*runtime_of("bubblewrap"))
        wait_up(lab, run)
        lab.slurm("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 3")
        job = lab.wait_end(run)
    finally:
        lab.slurm("scontrol", "update", "PartitionName=main", "GraceTime=0", "PreemptMode=REQUEUE")
    log = read(run, "batch")
    assert len(list(run.glob("saved-*"))) == 4, (job, log)
    # Before 24.05 Slurm makes nothing of a preemption within which the job ended.
    assert job["JobState"] in {"PREEMPTED", "FAILED"}, log
    assert (job["Restarts"], lab.status(run)["exit_code"]) == ("0", 143), log
    said = why(lab, run)
    assert (said["rule"], said["verdict"]) == ("preempted", "try again"), said
    assert lab.settled(run) == []


# ---- nodes ----


def wait_message_timeout(lab: Lab) -> None:
    """Before a lost node is back: Slurm then ends at once what still runs there.

    slurmctld leaves steps alone whose job ended less than MessageTimeout ago (job_mgr.c, validate_jobs_on_node), and looks again
    only when the node registers again, which took 80 s.
    """
    (seconds,) = re.findall(r"(?m)^MessageTimeout += ([0-9]+) sec", lab.slurm("scontrol", "show", "config"))
    time.sleep(int(seconds) + 1)


@pytest.mark.parametrize("cell", cells(("srun", "bubblewrap")))
def test_node_daemon_killed(spare_lab: Lab, runtime_of: RuntimeOf, cell: Cell) -> None:
    """The node's ranks run on, and nobody can end them, until its daemon is back."""
    lab = spare_lab
    write(lab, "")
    run = lab.submit(*options_of(cell, runtime_of))
    wait_up(lab, run)
    node = lab.cluster.nodes[1].name
    kill_slurmd(lab, node)
    try:
        job = lab.wait_end(run)
        assert job["JobState"] == "NODE_FAIL", read(run, "batch")
        assert lab.status(run)["exit_code"] == 143, read(run, "batch")
        assert lab.status(run)["reason"] == "NodeDown"
        assert (run / "saved-0-0").exists(), "the ranks beside the lost node save"
        assert (why(lab, run)["rule"], why(lab, run)["verdict"]) == ("node-lost", "bad node")
    finally:
        wait_message_timeout(lab)
        lab.restart_slurmd(node)
    assert lab.settled(run) == []


@pytest.mark.faults
def test_node_rebooted(spare_lab: Lab, runtime_of: RuntimeOf) -> None:
    """All that ran there is gone, and the node is back before Slurm has missed it: srun finds out, and gives up."""
    lab = spare_lab
    write(lab, "")
    run = lab.submit(*runtime_of("bubblewrap"))
    wait_up(lab, run)
    node = lab.slurm("scontrol", "show", "hostnames", lab.job(run)["NodeList"]).split()[-1]
    for one in lab.node_processes(node):
        with contextlib.suppress(ProcessLookupError):
            kill(one.pid)
    # A machine that starts anew has lost its memory.
    lab.inside(node, "find", "/dev/shm", "-mindepth", "1", "-delete")
    lab.restart_slurmd(node)
    job = lab.wait_end(run)
    assert (job["JobState"], lab.status(run)["exit_code"]) == ("FAILED", 137), read(run, "batch")
    assert lab.settled(run) == []


@pytest.mark.faults
def test_ranks_and_collector_killed_at_once(lab: Lab, runtime_of: RuntimeOf) -> None:
    """A rank that ends removes the reports of a killed collector. Here both are killed: the batch script does it on its node."""
    write(lab, "")
    run = lab.submit(*runtime_of("bubblewrap"), "--set", "resources.nodes=1")
    lab.wait(lambda: len(list(run.glob("up-*-0"))) == 2, run)
    for one in lab.processes(run):
        if one.argv[0].endswith("bash") and re.search(r"/(gpu-monitor|rank)\.sh", one.line):
            with contextlib.suppress(ProcessLookupError):
                kill(one.pid)
    job = lab.wait_end(run)
    assert (job["JobState"], lab.status(run)["exit_code"]) == ("FAILED", 137), read(run, "batch")
    assert lab.settled(run) == []


@pytest.mark.faults
def test_nodes_lost_one_after_the_other(spare_lab: Lab, runtime_of: RuntimeOf) -> None:
    """Slurm's own requeues count: `retry.requeue` of them, and the job ends."""
    lab = spare_lab
    write(lab, "[retry]\nrequeue = 1\n", how="deaf", rank=9)
    run = lab.submit(*runtime_of("bubblewrap"))
    for start in (0, 1):
        wait_up(lab, run, start=start)
        node = lab.slurm("scontrol", "show", "hostnames", lab.job(run)["NodeList"]).split()[-1]
        kill_slurmd(lab, node)
        try:
            lab.wait(lambda: lab.job(run)["JobState"] not in {"RUNNING", "COMPLETING"}, run)
        finally:
            wait_message_timeout(lab)
            lab.restart_slurmd(node)
    job = lab.wait_end(run)
    assert (job["JobState"], job["Restarts"]) == ("NODE_FAIL", "1"), read(run, "batch")
    assert not list(run.glob("up-*-2"))
    assert lab.settled(run) == []


def kill_slurmd(lab: Lab, node: str) -> None:
    for one in lab.node_processes(node):
        if one.argv[0].endswith("slurmd") and "-N" in one.argv:
            kill(one.pid)


@pytest.mark.parametrize("cell", cells(("srun", "bubblewrap")))
def test_network_of_a_node_cut(spare_lab: Lab, runtime_of: RuntimeOf, cell: Cell) -> None:
    """Slurm gives the node up and queues the job again; test_excluded_node shows one that continues where there are good nodes."""
    lab = spare_lab
    write(lab, "[retry]\nrequeue = 1\n")
    run = lab.submit(*options_of(cell, runtime_of))
    wait_up(lab, run)
    node = lab.cluster.nodes[1].name
    lab.inside(node, "ip", "link", "set", "eth0", "down")
    try:
        lab.wait(lambda: lab.job(run)["Restarts"] == "1", run)
        lab.wait(lambda: "Slurm has put the job back into the queue" in read(run, "batch"), run)
        cancel(lab, run)
        lab.wait_end(run)
    finally:
        wait_message_timeout(lab)
        lab.inside(node, "ip", "link", "set", "eth0", "up")
        lab.wait_nodes()
    assert lab.settled(run, seconds=60) == []


def test_a_spare_takes_a_lost_nodes_place(spare_lab: Lab) -> None:
    lab = spare_lab
    write(lab, "[retry]\nin_allocation = 1\nspares = 1\n")
    run = lab.submit()
    wait_up(lab, run)
    node = lab.cluster.nodes[1].name
    for one in lab.node_processes(node):
        with contextlib.suppress(ProcessLookupError):
            kill(one.pid)
    # A machine that dies loses its memory too.
    lab.inside(node, "find", "/dev/shm", "-mindepth", "1", "-delete")
    try:
        wait_up(lab, run, start=1)
        job = lab.wait_end(run)
        log = read(run, "batch")
        assert (job["JobState"], job["Restarts"], lab.status(run)["exit_code"]) == ("COMPLETED", "0", 0), log
        assert f"node {node} is lost" in log
    finally:
        lab.restart_slurmd(node)
    assert lab.settled(run) == []


# ---- disk and image ----


@needs_root
@pytest.mark.parametrize("cell", cells(("srun", "bubblewrap")))
def test_disk_full_in_the_run_folder(lab: Lab, runtime_of: RuntimeOf, cell: Cell) -> None:
    write(lab, "", how="fill")
    # Beside what is kept for all runs: py-spy has 8 MB.
    with shared_disk(lab, lab.project / "small", megabytes=24) as disk, runs_at(lab, disk) as options:
        run = Path(lab.kit("submit", *options, *options_of(cell, runtime_of)).stdout.splitlines()[0])
        job = lab.wait_end(run)
        facts, log = lab.kit("status", str(run), "--json").stdout, read(run, "batch")
        assert job["JobState"] == "FAILED"
        assert "no space is left where the run folder is" in log
        assert re.search(r'"exit_code": (1|120|137)', facts), facts + log
        assert json.loads(lab.kit("why", str(run), "--json").stdout)["rule"] == "disk-full"
        assert lab.settled(run) == []


@pytest.mark.parametrize("cell", [cell for cell in cells(("srun", "bubblewrap")) if "bare" not in str(cell.id)])
def test_image_replaced_under_the_job(
    lab: Lab, runtime_of: RuntimeOf, train_cpu: Path, tmp_path: Path, cell: Cell
) -> None:
    """What runs continues with the bytes that it has; nothing is started again from others."""
    write(lab, "[retry]\nin_allocation = 2\n")
    with store_at(lab, train_cpu, tmp_path) as (options, image):
        run = Path(lab.kit("submit", *options, *options_of(cell, runtime_of)).stdout.splitlines()[0])
        wait_up(lab, run)
        other = image.with_suffix(".other")
        other.write_bytes(b"not the image")
        other.replace(image)
        kill(next(p.pid for p in lab.processes(run) if p.argv[0] == "/usr/bin/python3"))
        lab.wait_end(run)
        log = read(run, "batch")
        assert lab.status(run)["exit_code"] == 137, log
        assert "was replaced under the run" in log
        # The rank that was killed ended the run; the image only kept it from being started again.
        assert json.loads(lab.kit("why", str(run), "--json").stdout)["rule"] == "killed"
        assert not list(run.glob("up-*-1"))
        assert lab.settled(run) == []


def test_image_replaced_before_the_job(lab: Lab, train_cpu: Path, tmp_path: Path) -> None:
    """Between submit and start: the preflight tells."""
    write(lab, "")
    with store_at(lab, train_cpu, tmp_path) as (options, image):
        run = Path(lab.kit("submit", *options, "--set", 'slurm.extra=["--begin=now+3"]').stdout.splitlines()[0])
        image.unlink()
        image.write_bytes(b"not the image")
        lab.wait_end(run)
        assert lab.status(run)["exit_code"] == 72
        assert "has 13 bytes here, and its lock says" in read(run, "batch")
        assert json.loads(lab.kit("why", str(run), "--json").stdout)["rule"] == "preflight-image"


@contextmanager
def shared_disk(lab: Lab, target: Path, *, megabytes: int) -> Iterator[Path]:
    """A small file system that this machine and every node of the cluster have mounted: a mount here is not seen there."""
    image = lab.project.parent / f"{target.name}.ext4"
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    shell.run(["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image)])
    target.mkdir()
    shell.run(["mount", "-o", "loop", str(image), str(target)])
    try:
        device = shell.run(["findmnt", "--noheadings", "--output=SOURCE", str(target)]).stdout
        for node in lab.cluster.nodes:
            lab.inside(node.name, "mount", device, str(target))
        yield target
    finally:
        for node in lab.cluster.nodes:
            lab.inside(node.name, "umount", str(target))
        shell.run(["umount", str(target)])
        target.rmdir()


@contextmanager
def runs_at(lab: Lab, folder: Path) -> Iterator[list[str]]:
    """Options of `kit submit` for the same cluster with its runs in `folder`."""
    with variant(lab, "runs", f'runs = "{folder}"') as options:
        yield options


@contextmanager
def store_at(lab: Lab, store: Path, folder: Path) -> Iterator[tuple[list[str], Path]]:
    """Options for the same cluster with a store of its own, and the image in it: a link to the real one, never written."""
    found = re.search(r'^sha256 = "(\w+)"', (REPO / "containers/train-cpu/image.lock").read_text(), re.MULTILINE)
    assert found
    image = folder / "sha256" / f"{found[1]}.sqsh"
    image.parent.mkdir()
    for suffix in (".sqsh", ".json"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(store / "sha256" / f"{found[1]}{suffix}", image.with_suffix(suffix))
    with variant(lab, "store", f'store = "{folder}"') as options:
        yield options, image


@contextmanager
def variant(lab: Lab, name: str, own: str, *, table: str = "paths") -> Iterator[list[str]]:
    """The lab's cluster under another name, with one line of its own, such as another path."""
    key = own.split(maxsplit=1)[0]
    text = (lab.project / "clusters" / f"{lab.cluster.name}.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith(f"{key} = ")]
    lines.insert(lines.index(f"[{table}]") + 1, own)
    file = lab.project / "clusters" / f"{lab.cluster.name}-{name}.toml"
    link = lab.project / "xdg/kit/clusters" / file.stem
    file.write_text("\n".join(lines) + "\n")
    # It stays for the rest of the session: 'kit runs' asks for the cluster of every run there is.
    if not link.is_symlink():
        link.symlink_to(lab.cluster.folder)
    yield ["--cluster", file.stem]
