"""Cancels the runs and sweeps that `kit cancel` names; a sweep with all its points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kit.errors import RunError
from kit.runs import cancel as runs
from kit.runs import find_runs, status, which_slurm
from kit.runs.status import Queue, Status
from kit.slurm.client import JobId
from kit.sweeps import find


@dataclass(frozen=True, kw_only=True)
class Cancelled:
    """The result for one name.

    name: of the run or sweep. jobs: those that were cancelled. state: of a run that had already ended.
    """

    name: str
    jobs: tuple[JobId, ...]
    sweep: bool = False
    state: str = ""
    job_id: JobId | None = None

    def __str__(self) -> str:
        if self.sweep:
            return f"{len(self.jobs)} points cancelled"
        return f"job {self.job_id} has ended already: {self.state}" if self.state else f"job {self.job_id} cancelled"


def cancel(names: Sequence[str], folders: list[Path], *, queue: Queue) -> list[Cancelled]:
    """Cancel runs and sweeps by their names, or the newest run. RunError for an unknown name; then nothing is cancelled."""
    wanted: list[str | None] = [*names]
    found = [
        one
        for name in wanted or [None]
        for one in _with_partner(_find(name, folders, queue=queue), folders, queue=queue)
    ]
    clusters: dict[str, dict[JobId, Status]] = {}
    for _, active in found:
        for one in active:
            if one.job_id is not None:
                clusters.setdefault(one.manifest.cluster, {})[one.job_id] = one
    for cluster, jobs in clusters.items():
        runs.cancel(list(jobs.values()), env=which_slurm.env_of(cluster))
    return [what for what, _ in found]


def _with_partner(
    found: tuple[Cancelled, list[Status]], folders: list[Path], *, queue: Queue
) -> list[tuple[Cancelled, list[Status]]]:
    """The same, and the other half of a training over two clusters, where Slurm there still has it."""
    partners = [one.facts.partner for one in found[1] if one.facts.partner]
    halves = [_find(name, folders, queue=queue) for name in partners if not found[0].sweep]
    return [found, *(half for half in halves if half[1])]


def _find(name: str | None, folders: list[Path], *, queue: Queue) -> tuple[Cancelled, list[Status]]:
    """The run or sweep of a name, and its runs that Slurm still has."""
    sweep = find.named(name, folders) if name else None
    if sweep is not None:
        active = find.active(sweep, queue=queue)
        jobs = tuple(one.job_id for one in active if one.job_id is not None)
        return Cancelled(name=sweep.name, jobs=jobs, sweep=True), active
    run_dir = find_runs.find_one(name, folders)
    (one,) = status.of([run_dir], queue=queue)
    if one.facts.problem:
        hint = f"'scancel {one.job_id}' cancels the job that its events name" if one.job_id else ""
        raise RunError(one.facts.problem, hint=hint)
    if one.job_id is None:
        raise RunError(f"{run_dir.name}: it has no job", hint="it was not submitted")
    if not one.active:
        return Cancelled(name=run_dir.name, jobs=(), state=one.state, job_id=one.job_id), []
    return Cancelled(name=run_dir.name, jobs=(one.job_id,), job_id=one.job_id), [one]
