"""Tells from a run's folder how the run ended: the same with and without a controller, and after Slurm has forgotten the job."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path

from kit.files import untrusted_files
from kit.record import log_places, run_facts
from kit.record.run_facts import Facts
from kit.schema.run_paths import RunPaths

# The line that Slurm writes into a job's output when it ends the job. Slurm 26.05 writes `DUE to SIGNAL Terminated` for a plain
# scancel.
SLURM_ENDED = (
    r"\*\*\* (?P<what>JOB|STEP) (?P<job>\d+)\S* ON \S+ CANCELLED AT \S+"
    r"(?: DUE TO (?P<why>[A-Z ]+?)| DUE to SIGNAL [^*]+?)?(?:,| \*\*\*)"
)
# The first line of a start in the batch log (lib/nodes.sh).
START = r": job \d+ \(.*\), queued again \d+ times"

# squeue's reason for a job in this state, which the folder gives after Slurm has forgotten the job.
_REASONS = {"NODE_FAIL": "NodeDown", "TIMEOUT": "TimeLimit"}
_STATES = {"TIME LIMIT": "TIMEOUT", "PREEMPTION": "PREEMPTED", "NODE FAILURE": "NODE_FAIL"}
# What lib/retry.sh records of a preempted job whose ranks ended with 0: its words, and 128 + SIGTERM.
_PREEMPTED, _DOUBTED = ": Slurm preempted the job, and the ranks ended with 0", 143
_TAIL_BYTES = 64 << 10
# Joined as text, as in run_facts.
_MANIFEST, _EVENTS, _CLOSED = RunPaths(Path()).manifest, RunPaths(Path()).events, RunPaths(Path()).closed


def is_over(run_dir: Path, facts: Facts) -> bool:
    """Whether the folder alone tells that the run has ended: the batch script closed its record after everything else.

    False for a chain, whose later links Slurm may have, and after the run was submitted again.
    """
    if facts.exit_code is None or facts.problem or facts.links or facts.imported:
        return False
    try:
        closed = os.stat(f"{run_dir}/{_CLOSED}").st_mtime_ns  # noqa: PTH116
        rest = (os.stat(f"{run_dir}/{name}").st_mtime_ns for name in (_MANIFEST, _EVENTS))  # noqa: PTH116
        return closed >= max(rest)
    except OSError:
        return False


def state(run_dir: Path, facts: Facts) -> str:
    """Slurm's word for the end of a run whose batch script has recorded its code."""
    plain = "COMPLETED" if facts.exit_code == 0 else "FAILED"
    # A preemption with a grace time reaches the ranks only.
    if not facts.asked_to_end and facts.exit_code != _DOUBTED:
        return plain
    found = _slurms_word(run_dir, facts) or ("CANCELLED" if facts.asked_to_end else plain)
    # The mark of a preemption stays on a job that ended well: the batch script records no 0 if it was itself preempted.
    return plain if found == "PREEMPTED" and facts.exit_code == 0 else found


def reason(ended: str) -> str:
    """squeue's reason for a job with this final state; empty for a state without one."""
    return _REASONS.get(ended, "")


def _slurms_word(run_dir: Path, facts: Facts) -> str:
    """The reason in the last line of Slurm in the last start's log; empty if there is none, as for a plain cancel."""
    try:
        text = untrusted_files.tail(log_places.batch(run_dir)[0], _TAIL_BYTES).decode(errors="replace")
    except OSError:
        text = ""
    last = [found.end() for found in re.finditer(START, text)]
    text = text[last[-1] if last else 0 :]
    job = str(facts.started[-1]) if facts.started else ""
    for line in reversed([*re.finditer(SLURM_ENDED, text)]):
        if line["job"] == job and line["why"] in _STATES:
            return _STATES[line["why"]]
    return "PREEMPTED" if _PREEMPTED in text else ""


def elapsed(run_dir: Path) -> str:
    """The time from the last start to the end, as squeue prints it: `1:02:03`; empty if it is not known."""
    times = {}
    for event in run_facts.events(run_dir):
        try:
            times[event["event"]] = float(str(event["epoch"]))
        except (KeyError, ValueError):
            continue
    if not {"start", "end"} <= times.keys() or times["end"] < times["start"]:
        return ""
    return str(timedelta(seconds=round(times["end"] - times["start"]))).removeprefix("0:")
