"""Cancels the runs and sweeps that `kit cancel` names; a sweep with all its points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kit import data_folders
from kit.errors import KitError, RunError
from kit.hosts import clusters, status
from kit.hosts.host import Queue
from kit.hosts.status import Status
from kit.record import find_runs
from kit.slurm.client import JobId
from kit.submission import cancel as runs
from kit.submission import catch_up
from kit.sweeps import find


@dataclass(frozen=True, kw_only=True)
class Cancelled:
    """The result for one name.

    name: of the run or sweep. jobs: those that were cancelled. state: of a run that had already ended. problem: the reason why the
    other half of a training over two clusters was not cancelled.
    """

    name: str
    jobs: tuple[JobId, ...]
    sweep: bool = False
    state: str = ""
    job_id: JobId | None = None
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        if self.sweep:
            return f"{len(self.jobs)} points cancelled"
        return f"job {self.job_id} has ended already: {self.state}" if self.state else f"job {self.job_id} cancelled"


def cancel(names: Sequence[str], folders: list[Path], *, queue: Queue) -> list[Cancelled]:
    """Cancel runs and sweeps by their names, or the newest run. RunError for an unknown name; then nothing is cancelled."""
    wanted: list[str | None] = [*names]
    targets = [
        target
        for name in wanted or [None]
        for target in _with_partner(_find(name, folders, queue=queue), folders, queue=queue)
    ]
    by_cluster: dict[str, dict[JobId, Status]] = {}
    for _, active in targets:
        for run in active:
            if run.job_id is not None:
                by_cluster.setdefault(run.facts.cluster, {})[run.job_id] = run
    problems = []
    for jobs in ([*by_id.values()] for by_id in by_cluster.values()):
        try:
            runs.cancel(jobs, host=clusters.host_of_run(jobs[0].run_dir))
        except KitError as error:
            # The jobs of the other clusters are cancelled all the same.
            problems.append(error)
    if problems:
        raise problems[0]
    return [what for what, _ in targets]


def _with_partner(
    found: tuple[Cancelled, list[Status]], folders: list[Path], *, queue: Queue
) -> list[tuple[Cancelled, list[Status]]]:
    """The found runs, and for a training over two clusters also the other half, if its Slurm still has it."""
    partners = [one.facts.partner for one in found[1] if one.facts.partner]
    halves = [_find_half(name, folders, queue=queue) for name in partners if not found[0].sweep]
    return [found, *(half for half in halves if half[1] or half[0].problem)]


def _find_half(name: str, folders: list[Path], *, queue: Queue) -> tuple[Cancelled, list[Status]]:
    """The other half. If it was never submitted, or its cluster does not answer, this is no reason to keep the named one."""
    catch_up.refresh(data_folders.project(), [name])
    try:
        half = _find(name, folders, queue=queue)
    except RunError as error:
        return Cancelled(name=name, jobs=(), problem=f"{name}, the other half: {error.message}"), []
    if half[0].state == status.UNKNOWN:
        problem = f"{name}, the other half: its cluster does not answer; 'kit cancel {name}' once it does"
        return Cancelled(name=name, jobs=(), state=status.UNKNOWN, problem=problem), []
    return half


def _find(name: str | None, folders: list[Path], *, queue: Queue) -> tuple[Cancelled, list[Status]]:
    """The run or sweep of a name, and its runs that Slurm still has."""
    sweep = find.named(name, folders) if name else None
    if sweep is not None:
        active = find.active(sweep, queue=queue)
        jobs = tuple(run.job_id for run in active if run.job_id is not None)
        return Cancelled(name=sweep.name, jobs=jobs, sweep=True), active
    run_dir = find_runs.find_one(name, folders)
    (run,) = status.read_statuses([run_dir], queue=queue)
    if run.facts.problem:
        hint = f"'scancel {run.job_id}' cancels the job that its events name" if run.job_id else ""
        raise RunError(run.facts.problem, hint=hint)
    if run.state == status.UNKNOWN and run.reason:
        raise RunError(f"{run_dir.name}: {run.reason}", hint=f"kit cancel {run_dir.name}, once Slurm answers")
    if run.job_id is None:
        raise RunError(f"{run_dir.name}: it has no job", hint="it was not submitted")
    if not run.active:
        return Cancelled(name=run_dir.name, jobs=(), state=run.state, job_id=run.job_id), []
    return Cancelled(name=run_dir.name, jobs=(run.job_id,), job_id=run.job_id), [run]
