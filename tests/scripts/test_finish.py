"""The end of the batch script: what is on record, and when."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.scripts.batch_lab import BIN, BatchLab

# What may take so long that Slurm kills the script in the middle of it.
SLOW = ("steps::end_all", "stall_watch::stopped", "task_logs::merge", "notices::closed", "heartbeat::stopped")


def finish(lab: BatchLab, code: int, head: str = "") -> list[str]:
    """What the script says and calls when it ends with a code, and what is on record at each call."""
    text = (BIN / "batch.sh").read_text()
    function = text[text.index("end_attempt() {") : text.index("\ntrain() {")]
    record = lab.run_dir / "state" / "events.jsonl"
    stubs = "".join(
        f'{name}() {{ echo "{name}: $(grep -c exit_code {record} 2>/dev/null || true) on record"; }}\n' for name in SLOW
    )
    return lab.bash(
        f"KIT_PARTS=(restarts notices stall_watch heartbeat)\n{stubs}{function}\n{head}\ntrap finish EXIT\nexit {code}"
    )


def ends(lab: BatchLab) -> list[tuple[str, str]]:
    """The ends that are on record."""
    lines = (lab.run_dir / "state" / "events.jsonl").read_text().splitlines()
    return [(one["event"], one["exit_code"]) for one in map(json.loads, lines) if "exit_code" in one]


@pytest.fixture
def lab(tmp_path: Path) -> BatchLab:
    return BatchLab(tmp_path)


@pytest.mark.parametrize("code", [0, 143])
def test_the_code_is_on_record_before_anything_that_takes_time(lab: BatchLab, code: int) -> None:
    """Slurm kills the script KillWait seconds after its TERM: a run that had ended with 143 had no code."""
    said = finish(lab, code, "signals_got=TERM signals_slurms_term=1" if code else "")
    calls = [line for line in said if line.startswith(SLOW)]
    assert len(calls) == len(SLOW)
    assert all(line.endswith(": 1 on record") for line in calls), calls
    assert ends(lab) == [("end", str(code))], "and once"


def test_a_job_that_cannot_go_back_to_the_queue_has_ended(lab: BatchLab) -> None:
    lab.command("scontrol", '[[ "$1" != requeue ]]')
    said = finish(lab, 137, "KIT_RETRY_REQUEUE=1")
    assert ends(lab) == [("requeue", "137"), ("end", "137")]
    assert any(line.startswith("notices::closed") for line in said), "the notice of the end, and the file with its URLs"


def test_a_job_that_goes_back_to_the_queue_has_no_end(lab: BatchLab) -> None:
    finish(lab, 137, "KIT_RETRY_REQUEUE=1")
    assert ends(lab) == [("requeue", "137")]


@pytest.mark.parametrize(("on_stall", "event"), [("restart", "requeue"), ("end", "end")])
def test_a_standstill_goes_back_to_the_queue_where_the_job_says_so(lab: BatchLab, on_stall: str, event: str) -> None:
    """In a trap, a `return` without a code returns the one from before the trap: no stalled job went back."""
    finish(lab, 76, f"KIT_RETRY_REQUEUE=1 KIT_ON_STALL={on_stall}")
    assert ends(lab) == [(event, "76")]


SITE = """case "$1 $2" in
"show job") cat "${0%/*}/job" ;;
"show config") printf '%s = %s\\n' PreemptMode REQUEUE PreemptType preempt/partition_prio SLURM_VERSION 24.11.5 ;;
"show partition") echo "PartitionName=main PreemptMode=REQUEUE State=UP" ;;
esac"""


@pytest.mark.parametrize(
    ("preempted", "code", "recorded"),
    [
        ("2026-11-22T10:00:00", 0, ("end", "143")),
        ("2026-11-22T10:00:00", 143, ("requeue", "143")),
        ("2026-11-22T08:00:00", 0, ("end", "0")),
        ("None", 0, ("end", "0")),
        ("2026-11-22T10:00:00 Requeue=0", 143, ("end", "143")),
    ],
    ids=["ended with 0", "said that it was cut", "in an earlier start", "never", "may not go back"],
)
def test_a_preempted_job_that_ends_with_0_is_neither_done_nor_run_again(
    lab: BatchLab, preempted: str, code: int, recorded: tuple[str, str]
) -> None:
    """From 24.05 on Slurm queues it again whatever its code, and where it does not, the run counted as done."""
    lab.command("scontrol", SITE)
    may = "" if "Requeue" in preempted else "Requeue=1 "
    lab.say("job", f"JobId=7 {may}Restarts=0 StartTime=2026-11-22T09:00:00 PreemptTime={preempted} \n")
    finish(lab, code)
    assert ends(lab) == [recorded]
    told = [line for line in lab.calls("scontrol") if line.startswith("scontrol update")]
    assert told == (["scontrol update JobId=7 Requeue=0"] if (code, recorded) == (0, ("end", "143")) else [])


@pytest.mark.parametrize(("code", "recorded"), [(0, "143"), (143, "143"), (137, "137")])
def test_a_job_that_never_starts_again_ends_as_others_and_changes_nothing_of_slurms(
    lab: BatchLab, code: int, recorded: str
) -> None:
    """Its run has no part for that, and Slurm has it with Requeue=0."""
    lab.command("scontrol", SITE)
    lab.say("job", "JobId=7 Requeue=0 Restarts=0 StartTime=2026-11-22T09:00:00 PreemptTime=2026-11-22T10:00:00 \n")
    finish(lab, code, "KIT_PARTS=(notices stall_watch heartbeat)")
    assert ends(lab) == [("end", recorded)]
    assert lab.calls("scontrol") == ["scontrol show job 7 --oneliner"]


DEAF = "trap '' TERM; exec sleep 60"


def test_a_controller_that_does_not_answer_costs_no_code(lab: BatchLab) -> None:
    """After its own TERM Slurm kills the script KillWait seconds later, and two questions stood before the end."""
    lab.command("scontrol", DEAF)
    lab.command("squeue", DEAF)
    began = time.monotonic()
    finish(lab, 143, "signals_got=TERM signals_slurms_term=1 slurm_killed_at=$((EPOCHSECONDS + 6))")
    assert time.monotonic() - began < 20, "three seconds are left for the rest, and a busy machine's time"
    assert ends(lab) == [("end", "143")]
    assert len(lab.calls("scontrol")) == 1, "one question, once"


def test_slurm_is_asked_for_the_job_once(lab: BatchLab) -> None:
    lab.say("job", "JobId=7 Requeue=1 Restarts=0 StartTime=2026-11-22T09:00:00 PreemptTime=None \n")
    finish(lab, 143, "signals_got=TERM signals_slurms_term=1")
    assert lab.calls("scontrol") == ["scontrol show job 7 --oneliner"]


def test_a_term_of_unknown_origin_is_settled_before_the_end(lab: BatchLab) -> None:
    """One of `kit cancel`: Slurm hears that the job was cancelled."""
    lab.command("squeue", 'case "$*" in *%T*) echo RUNNING ;; esac')
    head = "signals_got=TERM signals_slurms_term=1 signals_unsure=1 slurm_killed_at=$((EPOCHSECONDS + 20))"
    finish(lab, 143, head)
    assert lab.calls("scancel") == ["scancel 7"]
