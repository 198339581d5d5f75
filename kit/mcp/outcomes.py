"""The outcome of a run in the record of spending: whether Slurm has taken it, and what it used once it has ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kit.errors import KitError
from kit.hosts import status, submission
from kit.hosts.clusters import find_host
from kit.mcp.spending import Spent
from kit.record import how_ended, run_facts
from kit.schema.run_paths import RunPaths
from kit.ssh import run_folder_mirror as mirrors
from kit.submission import catch_up


def settle(entry: Spent) -> Spent:
    """The entry as it is now. What is not known stays as it is, and counts."""
    run_dir = Path(entry.run_dir)
    try:
        return _ended(entry, run_dir) if entry.state == "submitted" else _opened(entry, run_dir)
    except (KitError, OSError):
        return entry


def _opened(entry: Spent, run_dir: Path) -> Spent:
    """An entry whose server ended before it recorded the outcome. The kit finds the run's job by its mark."""
    if mirrors.holding(run_dir):
        # The cluster may have the run although this machine does not.
        (run,) = status.read_statuses([run_dir], queue=catch_up.queue()) if run_dir.is_dir() else (None,)
        job = run.facts.slurm_id if run else None
        return replace(entry, state="submitted", job_id=str(job)) if job is not None else entry
    if not run_dir.is_dir():
        # The folder, and in it the intent, come before sbatch.
        return replace(entry, state="dropped")
    (run,) = status.read_statuses([run_dir], queue=catch_up.queue())
    if run.facts.slurm_id is not None:
        return replace(entry, state="submitted", job_id=str(run.facts.slurm_id))
    intent = submission.read_intent(RunPaths(run_dir).submission)
    if intent is None:
        return (
            entry
            if RunPaths(run_dir).submission.exists() or run.job_id is not None
            else replace(entry, state="dropped")
        )
    if submission.is_late(intent) and not submission.jobs_of(
        intent, env=find_host(entry.cluster).env(), forgotten=True
    ):
        return replace(entry, state="dropped")
    return entry


def _ended(entry: Spent, run_dir: Path) -> Spent:
    """A run that has closed its own record used what it ran for. Any other counts as planned."""
    facts = run_facts.read_facts(run_dir)
    if not facts.started and RunPaths(run_dir).cancelled.exists():
        (found,) = status.read_statuses([run_dir], queue=catch_up.queue())
        never = found.state == "CANCELLED" and not found.facts.started
        return replace(entry, state="ended", node_hours=0.0, gpu_hours=0.0) if never else entry
    if not how_ended.is_over(run_dir, facts):
        return entry
    hours = _hours(run_dir)
    if hours is None or entry.node_hours <= 0:
        return entry
    used = hours * entry.nodes
    return replace(
        entry, state="ended", node_hours=round(used, 6), gpu_hours=round(entry.gpu_hours * used / entry.node_hours, 6)
    )


def _hours(run_dir: Path) -> float | None:
    """The hours of all starts of a run; None if a start has no end."""
    total, began = 0.0, None
    for event in run_facts.events(run_dir):
        epoch = event.get("epoch")
        if event["event"] not in {"start", "requeue", "end"} or not isinstance(epoch, int | float):
            continue
        if event["event"] == "start":
            if began is not None:
                return None
            began = float(epoch)
        elif began is not None:
            total, began = total + max(0.0, float(epoch) - began), None
    return total / 3600 if began is None else None
