"""Notices of jobs on a real Slurm, to a real webhook and a real mail server: by `kit watch`, and by the batch script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from email import message_from_bytes
from email.header import decode_header, make_header
from typing import Any

import pytest

from tests.cluster.lab import TIMEOUT_S, Lab
from tests.endpoints import mailbox, webhook

pytest.importorskip("apprise", reason="notices: pip install 'slurm-kit[notify]'")
pytestmark = pytest.mark.cluster

TOKEN = "T0ken-that-nobody-may-see"
# Rank 1 is stalled in its fourth step until it is let go; then all end with what the job says.
PROGRAM = """\
import os, pathlib, sys, time
from kit_rank import progress
run, rank = pathlib.Path(os.environ["KIT_RUN_DIR"]), os.environ["RANK"]
for step in range(1, 8):
    if (step, rank) == (4, "1"):
        while sys.argv[1] == "stall" and not (run / "go").exists():
            time.sleep(0.1)
    time.sleep(0.2)
    progress.step(step)
sys.exit(3 if sys.argv[1] == "fail" else 0)
"""
JOB = """\
script = "program.py"
shape = "srun"
python = "/usr/bin/python3"
args = ["{what}"]
[resources]
nodes = 2
ranks_per_node = 1
[preflight]
free_disk_gb = 0
[watch]
stall = 10
on_stall = "report"
[notify]
on = ["start", "fail", "stall", "end"]
to = ["HOOK", "MAIL"]
by = "{by}"
"""


def test_start_stall_end_and_failure_by_watch(lab: Lab) -> None:
    """One `kit watch` over two jobs; each event comes once to each endpoint, and the watch ends with the last of them."""
    with webhook() as hook, mailbox() as (port, letters):
        env = _urls(hook.server_port, port)
        lab.write(JOB.format(what="stall", by="watch"), PROGRAM)
        sick = lab.submit("--no-container")
        lab.write(JOB.format(what="fail", by="watch"), PROGRAM)
        failing = lab.submit("--no-container")
        watch = subprocess.Popen(
            [sys.executable, "-m", "kit", "watch", str(sick), str(failing)],
            cwd=lab.project,
            env={**os.environ, **lab.env, **env},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            lab.wait(lambda: f"{sick.name}: ranks are stalled" in _titles(hook.got), sick)
            (sick / "go").touch()
            said = watch.communicate(timeout=TIMEOUT_S)[1]
        finally:
            (sick / "go").touch()
            watch.send_signal(signal.SIGTERM)
            watch.wait()
        lab.wait_end(sick)
        lab.wait_end(failing)
    expected = sorted(
        [
            f"{sick.name}: started",
            f"{sick.name}: ranks are stalled",
            f"{sick.name}: COMPLETED, exit code 0",
            f"{failing.name}: started",
            f"{failing.name}: FAILED, exit code 3",
        ]
    )
    assert sorted(_titles(hook.got)) == expected, said
    assert sorted(map(_subject, letters)) == expected
    still = next(one for one in hook.got if one["title"].endswith("ranks are stalled"))
    assert still["message"].startswith("rank 1 on "), still
    assert hook.paths == [f"/{TOKEN}"] * 5
    assert TOKEN not in said


def test_the_batch_script_tells_of_its_own_job(lab: Lab) -> None:
    """Nothing watches. The URLs are gone from the run's folder when it has ended."""
    # Nodes have networks of their own: they reach this machine by its address in theirs.
    here = lab.cluster.controller_address
    with webhook(here) as hook, mailbox(here) as (port, letters):
        lab.write(JOB.format(what="fail", by="batch"), PROGRAM)
        run = lab.submit("--no-container", env=_urls(hook.server_port, port, here))
        lab.wait_end(run)
        expected = [f"{run.name}: FAILED, exit code 3", f"{run.name}: started"]
        _until(lambda: len(hook.got) >= 2 and len(letters) >= 2)
    log = (run / "logs" / "batch.log").read_text()
    assert sorted(_titles(hook.got)) == expected, log
    assert sorted(map(_subject, letters)) == expected, log
    assert not (run / ".notify").exists()
    kept = "".join(path.read_text(errors="replace") for path in run.rglob("*") if path.is_file())
    assert TOKEN not in kept


def _urls(hook: int, mail: int, address: str = "127.0.0.1") -> dict[str, str]:
    return {
        "HOOK": f"json://{address}:{hook}/{TOKEN}",
        "MAIL": f"mailto://{address}:{mail}?from=kit@example.org&to=ada@example.org",
    }


def _titles(got: list[dict[str, Any]]) -> list[str]:
    return [one["title"] for one in got]


def _subject(letter: Any) -> str:
    return str(make_header(decode_header(message_from_bytes(letter.content)["Subject"])))


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
