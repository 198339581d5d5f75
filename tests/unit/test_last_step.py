"""The last step of a program that reports nothing, in `kit why` and `kit time`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from kit.health import last_step
from kit.health.run_record import Record
from kit.health.why import explain, with_last_step
from kit.hosts import status
from kit.ledger import find
from kit.slurm.client import QueuedJob
from tests.support import REPO

AT = 1_790_000_000
LOG = 'rank-0.log: "step N"'


def run_with(tmp_path: Path, name: str = "running", *, steps: str = "step 118 loss 2.5\nstep 120 loss 2.4\n") -> Path:
    """A run whose rank 0 wrote these lines at AT."""
    run = Path(shutil.copytree(REPO / "tests" / "why" / name, tmp_path / name))
    for metrics in run.glob("metrics.jsonl"):
        metrics.unlink()
    log = run / "logs" / "rank-0.log"
    log.write_text(log.read_text(encoding="utf-8") + steps, encoding="utf-8")
    os.utime(log, (AT, AT))
    return run


def record(run: Path) -> Record:
    said = json.loads((run / "slurm.json").read_text(encoding="utf-8"))
    (one,) = status.read_statuses([run], queue=lambda cluster: {said["job_id"]: QueuedJob(**said)} if said else {})
    return Record(status=one)


def test_the_file_that_tells_the_step_is_named(tmp_path: Path) -> None:
    found = last_step.read_last_step(run_with(tmp_path))
    assert found is not None
    assert (found.step, found.at, found.saved) == (120, AT, None)
    assert found.source.startswith("rank-0.log")
    assert found.words(AT + 65.2) == "step 120, 65 s ago"


def test_steps_after_the_newest_checkpoint_are_counted(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    for step in (60, 100):
        (run / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
    found = last_step.read_last_step(run)
    assert found is not None
    assert found.words(AT) == "step 120, 0 s ago, 20 after the newest checkpoint (step 100)"
    (run / "checkpoints" / "checkpoint-140").mkdir()
    later = last_step.read_last_step(run)
    assert later is not None
    assert later.words(AT) == "step 120, 0 s ago", "the log is older than the checkpoint"


def test_a_program_that_reports_itself_needs_no_log(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    (run / "metrics.jsonl").write_text('{"kind": "step", "step": 7, "time": "2026-11-22T13:05:30+00:00"}\n')
    assert last_step.read_last_step(run) is None


@pytest.mark.parametrize(("name", "ago"), [("running", True), ("killed", False)])
def test_kit_why_says_when_the_last_step_was(tmp_path: Path, name: str, ago: bool) -> None:
    one = record(run_with(tmp_path, name))
    plain = explain(one)
    found = with_last_step(one, plain)
    (added,) = found.evidence[len(plain.evidence) :]
    assert (found.line, found.rule, added.file) == (plain.line, plain.rule, "last step")
    assert added.text.startswith("step 120, ")
    assert (" s ago (from rank-0.log" in added.text, " at 2026-09-" in added.text) == (ago, not ago)


def test_a_run_that_ended_well_or_waits_needs_none(tmp_path: Path) -> None:
    for name in ("completed", "pending-priority"):
        source = REPO / "tests" / "why" / name / "logs" / "rank-0.log"
        run = run_with(tmp_path, name) if source.exists() else Path(shutil.copytree(source.parents[1], tmp_path / name))
        one = record(run)
        answer = explain(one)
        assert with_last_step(one, answer) is answer


def test_kit_time_notes_the_last_step(tmp_path: Path) -> None:
    one = record(run_with(tmp_path, "killed")).status
    assert any(note.startswith("the last step: step 120, at 2026-09-") for note in find.read_ledger(one, now=AT).notes)
