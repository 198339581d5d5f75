"""The fault matrix: what goes wrong, and for each fault the exit code, the job's state, the named cause, and that nothing is left.

`make faults` runs every fault in every start shape and container runtime that this machine has; `make test` each fault once.
docs/faults.md says the same in words.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration.image_lab import needs_root, small_disk
from tests.integration.lab import Lab

pytestmark = pytest.mark.cluster

PROGRAM = Path(__file__).with_name("faulty.py").read_text(encoding="utf-8")
QUICK = "[preflight]\nfree_disk_gb = 0\n"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault and its defined end.

    how, rank: of faulty.py. act: what the test does once all ranks are up. code: what the run recorded, None when nothing could.
    state: Slurm's. says: a pattern that the batch log holds. once: (shape, runtime) in which `make test` shows it.
    """

    once: tuple[str, str]
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
    """Slurm counts limits in minutes; an administrator may move the end."""
    lab.slurm("scontrol", "update", f"JobId={lab.job(run)['JobId']}", "EndTime=now")


def finish(_lab: Lab, run: Path) -> None:
    (run / "finish").touch()


def kill_monitor(lab: Lab, run: Path) -> None:
    for one in lab.processes(run):
        if "nvidia-smi" in one.line:
            kill(one.pid)
    lab.wait(lambda: "kit-monitor" not in lab.slurm("squeue", "--steps", "--format=%j"), run)
    finish(lab, run)


DMON = 'case "$1" in dmon) echo "#args $*"; while true; do echo line; sleep 0.2; done;; esac'
DEAF_DMON = 'trap "" TERM INT HUP USR1; case "$1" in dmon) while true; do echo line; sleep 0.2; done;; esac'
STUCK = 'case "$1" in --list-gpus) touch "{marker}"; sleep 600;; esac'

FAULTS = {
    "rank-exits": Fault(how="exit", code=7, says="rank 1 on node .* failed first, with exit code 7", once=("torchrun", "pyxis")),
    "rank-killed": Fault(how="kill", code=137, says="rank 1 on node .* failed first, with exit code 137", once=("srun", "bubblewrap")),
    "rank-hangs": Fault(
        act=usr1, how="deaf", code=138, saved=3, says="the ranks did not end within 5 s after USR1", once=("srun", "bubblewrap"),
        job="[slurm]\nlead = 10\n",
    ),
    "rank-ignores-term": Fault(
        act=cancel, how="deaf", code=143, state="CANCELLED", saved=3, says="the ranks did not end within 5 s after TERM",
        once=("torchrun", "bubblewrap"),
    ),
    "batch-killed": Fault(act=lambda lab, run: kill(lab.batch(run).pid), code=None, says="", once=("srun", "pyxis")),
    "srun-killed": Fault(
        act=lambda lab, run: kill(lab.srun(run).pid), code=137, says="with 137, and no rank recorded why|failed first", once=("srun", "bubblewrap"),
    ),
    "cancel": Fault(act=cancel, code=143, state="CANCELLED", saved=4, says="got TERM", once=("srun", "pyxis")),
    "cancel-in-preflight": Fault(
        act=cancel, code=143, state="CANCELLED", says="got TERM", ranks_start=False, tools={"nvidia-smi": STUCK}, once=("srun", "bubblewrap"),
    ),
    "lead-signal": Fault(act=usr1, code=138, saved=4, says="the ranks ended after USR1", once=("torchrun", "bubblewrap")),
    "time-limit": Fault(act=out_of_time, code=143, state="TIMEOUT", saved=4, says="got TERM", job="[slurm]\nlead = 0\n", once=("srun", "bare")),
    "monitor-killed": Fault(
        act=kill_monitor, code=0, state="COMPLETED", says="step kit-monitor had ended before, with 137", tools={"nvidia-smi": DMON},
        once=("srun", "bare"),
    ),
    "monitor-never-ends": Fault(
        act=finish, code=0, state="COMPLETED", says="end of job", tools={"nvidia-smi": DEAF_DMON}, once=("srun", "bare"),
    ),
}  # fmt: skip

CELLS = [
    pytest.param(name, shape, runtime, marks=() if FAULTS[name].once == (shape, runtime) else pytest.mark.faults)
    for name in FAULTS
    for shape in ("srun", "torchrun")
    for runtime in ("bubblewrap", "pyxis", "enroot", "bare")
    if not (shape == "torchrun" and runtime == "bare")  # torch is in the image only
]


@pytest.mark.parametrize(("name", "shape", "wanted"), CELLS)
def test_fault(lab: Lab, runtime_of: Callable[[str], list[str]], tmp_path: Path, name: str, shape: str, wanted: str) -> None:
    fault = FAULTS[name]
    run = start(lab, fault, [*runtime_of(wanted), "--set", f"shape={shape}"], tmp_path)
    fault.act(lab, run)
    began = time.monotonic()
    job = lab.wait_end(run)
    took = time.monotonic() - began
    facts, log = lab.status(run), read(run, "batch")
    assert (job["JobState"], facts["exit_code"]) == (fault.state, fault.code), log
    assert re.search(fault.says, log), log
    assert lab.settled(run) == []
    assert took < 60, f"the others end within seconds, not {took:.0f}"
    if fault.saved is not None:
        assert len(list(run.glob("saved-*"))) == fault.saved, "the ranks had the time to save"
    if not fault.ranks_start:
        assert not list(run.glob("up-*"))


def start(lab: Lab, fault: Fault, options: list[str], tmp_path: Path) -> Path:
    """Submit faulty.py and return once its ranks are up, or, where none will come up, once the preflight hangs."""
    lab.write(
        f'script = "program.py"\npython = "/usr/bin/python3"\nargs = ["{fault.how}", "{fault.rank}"]\n{QUICK}{fault.job}', PROGRAM
    )
    marker = tmp_path / "stuck"
    for tool, script in fault.tools.items():
        path = tmp_path / tool
        path.write_text(f"#!/bin/bash\n{script.format(marker=marker) if 'marker' in script else script}\n")
        path.chmod(0o755)
    run = lab.submit(*options, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    if fault.ranks_start:
        lab.wait(lambda: len(list(run.glob("up-*-0"))) == 4, run)
    else:
        lab.wait(marker.exists, run)
    return run


def read(run: Path, name: str) -> str:
    path = run / "logs" / f"{name}.log"
    return path.read_text(encoding="utf-8") if path.exists() else ""
