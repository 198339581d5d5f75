"""kit_events: a rank adds to the record of its run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from kit import shell
from tests.support import REPO

CODE = "import kit_events; kit_events.record_resumed(7, 'file'); print('on')"


def test_a_rank_records_the_step_that_it_continues_from(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    env = {"PYTHONPATH": str(REPO / "templates/kit_node"), "PATH": os.environ["PATH"], "KIT_RUN_DIR": str(tmp_path)}
    shell.run([sys.executable, "-c", CODE], env={**env, "SLURM_JOB_ID": "5", "KIT_ATTEMPT": "2"})
    event = json.loads((tmp_path / "state/events.jsonl").read_text())
    assert {name: event[name] for name in ("event", "job_id", "attempt", "step", "source")} == {
        "event": "resumed", "job_id": 5, "attempt": 2, "step": "7", "source": "file",
    }  # fmt: skip


def test_a_record_that_cannot_be_written_ends_no_rank(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(REPO / "templates/kit_node"), "PATH": os.environ["PATH"]}
    for where in ({}, {"KIT_RUN_DIR": str(tmp_path / "gone")}):
        assert shell.run([sys.executable, "-c", CODE], env={**env, **where}).stdout.strip() == "on"
