"""Settles submissions whose outcome was not known when they were made: Slurm's queue is searched for their marks."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from kit.errors import RunError, SlurmError
from kit.hosts import submission
from kit.hosts.submission import Intent
from kit.record.run_facts import Facts
from kit.schema.run_paths import RunPaths

# Joined as text, as in run_facts: making a path of each takes too long for 10,000 runs.
_NOTE = RunPaths(Path()).submission

_OPEN = "submit not confirmed: "


def settle(runs: Iterable[tuple[Path, Facts]]) -> Mapping[Path, str]:
    """Record the jobs of open submissions that Slurm has. Returns why the others are still open, by run folder.

    A run is also in the result, with an empty text, if its job was recorded now: its facts have changed.
    """
    reasons: dict[Path, str] = {}
    for path, facts in runs:
        if facts.problem or facts.imported or isinstance(facts.slurm_id, str) or not os.path.exists(f"{path}/{_NOTE}"):  # noqa: PTH110
            continue
        intent = submission.read_intent(RunPaths(path).submission)
        if intent is None or submission.is_under_way(intent):
            continue
        said = _settled(path, facts, intent)
        if said is not None:
            reasons[path] = said
    return reasons


def _settled(run_dir: Path, facts: Facts, intent: Intent) -> str | None:
    """None if nothing is open; an empty text if the job is recorded now; otherwise the reason."""
    from kit.hosts.clusters import find_host

    note = RunPaths(run_dir).submission
    if not submission.is_own(note):
        return f"{_OPEN}its user has not asked Slurm since"
    jobs = [job for job in facts.started if job not in intent.earlier]
    if not jobs:
        try:
            jobs = submission.jobs_of(intent, env=find_host(facts.cluster).env(), forgotten=True)
        except SlurmError as error:
            return f"{_OPEN}{error.message.splitlines()[0]}"
    if jobs:
        return _record(run_dir, jobs[0])
    if not submission.is_late(intent):
        return f"{_OPEN}Slurm has no job with its mark yet"
    if facts.slurm_id is not None:
        # A resume that Slurm never got: the run is what it was before.
        submission.confirmed(note)
        return None
    return f"{_OPEN}Slurm knows no job with its mark; 'kit resume {run_dir.name}' submits it"


def _record(run_dir: Path, job_id: int) -> str:
    from kit.record import manifest

    paths = RunPaths(run_dir)
    try:
        record = manifest.read_manifest(paths.manifest)
        earlier = [record.job_id] if record.job_id not in {None, job_id} else []
        record = record.model_copy(
            update={"job_id": job_id, "earlier_job_ids": (*record.earlier_job_ids, *filter(None, earlier))}
        )
        record.write(paths.manifest)
    except (OSError, RunError) as error:
        return f"{_OPEN}Slurm has taken it as job {job_id}, which cannot be recorded: {error}"
    with contextlib.suppress(OSError):
        submission.confirmed(paths.submission)
    print(f"kit: run {run_dir.name}: Slurm had taken it, as job {job_id}", file=sys.stderr)
    return ""
