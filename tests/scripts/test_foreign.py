"""bin/foreign.sh in a bash without a Slurm: signals that come before the user's script has started."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kit.render import render
from tests import laid_out
from tests.scripts.batch_lab import BatchLab
from tests.scripts.test_workspace import Taken

SCRIPT = '#!/bin/bash\ntouch "${KIT_RUN_DIR}/started"\n'


def _digest(run_dir: Path) -> str:
    found = (path for top in ("bin", "lib") for path in (run_dir / top).rglob("*") if path.is_file())
    files = sorted([*(str(path.relative_to(run_dir)) for path in found), "script"])
    lines = (f"{hashlib.sha256((run_dir / name).read_bytes()).hexdigest()}  {name}\n" for name in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _start(lab: BatchLab, tree: Path) -> subprocess.Popen[bytes]:
    """The batch script of a user's script, in a process group of its own."""
    for top in (laid_out.BIN, laid_out.LIB):
        shutil.copytree(top, lab.run_dir / top.name, ignore=shutil.ignore_patterns("__pycache__"))
    (lab.run_dir / "script").write_text(SCRIPT)
    (lab.run_dir / "script").chmod(0o755)
    (lab.run_dir / ".secrets").write_text("")
    values = {
        "sbatch": [], "run_dir": lab.run_dir, "snapshot": str(tree), "tree": tree.name, "code": _digest(lab.run_dir),
        "folder": str(lab.run_dir / "workspace"),
        "submit_dir": lab.run_dir, "args": (),
    }  # fmt: skip
    (batch := lab.run_dir / "batch.sh").write_text(render("bin/foreign.sh", values))
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_RESTART_COUNT": "0", "ENVIRONMENT": "BATCH"}
    path = f"{lab.programs}:{os.environ['PATH']}"
    return subprocess.Popen(["bash", batch], env={**os.environ, **slurm, "PATH": path}, start_new_session=True)


@pytest.mark.parametrize(
    ("kind", "name", "end"),
    [
        ("to all processes", signal.SIGTERM, [("signal", "TERM", None), ("requeue", None, "143")]),
        ("to all processes", signal.SIGUSR1, [("signal", "USR1", None), ("end", None, "138")]),
        ("to the batch shell", signal.SIGTERM, [("signal", "B:TERM", None), ("end", None, "143")]),
    ],
)
def test_a_signal_during_the_copy_ends_the_job_before_its_script(
    tmp_path: Path, kind: str, name: signal.Signals, end: list[tuple[str, str | None, str | None]]
) -> None:
    """The script was started after the copy; where the signal ended `cp`, a requeued run ended with 1, its snapshot `damaged`."""
    taken = Taken(tmp_path)
    tree, lab = taken.put(), taken.lab
    lab.say("job", "JobId=7 Requeue=1 Restarts=1 ExcNodeList=(null)\n")
    lab.command("cp", f'touch {tmp_path}/copying; sleep 5; exec {shutil.which("cp")} "$@"')
    batch = _start(lab, tree)
    while not (tmp_path / "copying").exists():
        assert batch.poll() is None
        time.sleep(0.02)
    (os.killpg if kind == "to all processes" else os.kill)(batch.pid, name)
    assert batch.wait(timeout=60) == 128 + name
    lines = (lab.run_dir / "state/events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [(one["event"], one.get("name"), one.get("exit_code")) for one in events[2:]] == end
    assert (lab.run_dir / ".secrets").exists() == (end[-1][0] == "requeue")
    assert not (lab.run_dir / "started").exists()
    assert not (lab.run_dir / "state/tree").exists(), "the next start copies again"
    assert not (tree / "damaged").exists()


def test_the_script_runs_in_the_copy(tmp_path: Path) -> None:
    taken = Taken(tmp_path)
    assert _start(taken.lab, taken.put()).wait(timeout=60) == 0
    assert (taken.lab.run_dir / "started").exists()
    assert (taken.copy / "train.py").read_text() == "one\n"
