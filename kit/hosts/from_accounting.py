"""Adds Slurm's accounting to the status of runs: jobs that slurmctld has forgotten, memory, CPU time, nodes of each start."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import timedelta

from kit.hosts.status import Status
from kit.slurm.accounting import Accounted
from kit.slurm.client import JobId

Ask = Callable[[str, Sequence[JobId]], dict[JobId, Accounted]]

# A cluster that was set up again may use a number again. A run's own job was submitted when its manifest was written.
_SAME_JOB_S = 600.0


def add(runs: Sequence[Status], *, ask: Ask, every: bool = False) -> list[Status]:
    """The statuses with accounting's data, asked once per cluster. A status without such data is unchanged.

    By default only runs that would be LOST are asked for; with `every`, all runs that have a job.
    """
    wanted: dict[str, list[JobId]] = {}
    for run in runs:
        if run.job_id is not None and not run.facts.problem and (every or run.state == "LOST"):
            wanted.setdefault(run.facts.cluster, []).append(run.job_id)
    known = {cluster: ask(cluster, jobs) for cluster, jobs in wanted.items()}
    return [_with(run, known.get(run.facts.cluster, {})) for run in runs]


def _with(run: Status, known: dict[JobId, Accounted]) -> Status:
    entry = known.get(run.job_id) if run.job_id is not None else None
    if entry is None or abs(entry.submitted_at.timestamp() - run.facts.submitted_at) > _SAME_JOB_S:
        return run
    run = dataclasses.replace(run, accounted=entry)
    if run.state != "LOST":
        return run
    return dataclasses.replace(
        run,
        state=entry.state,
        exit_code=entry.exit_code,
        nodes=run.nodes or (entry.starts[-1] if entry.starts else ""),
        elapsed=run.elapsed or str(timedelta(seconds=entry.elapsed_s)),
        restarts=max(run.restarts, len(entry.starts) - 1),
    )


def facts(entry: Accounted | None) -> dict[str, object]:
    """The values that `kit status` prints. max_rss: of the largest task. cpu_time: sum over all starts, hours:minutes:seconds."""
    if entry is None:
        return {}
    return {
        "max_rss": f"{entry.max_rss / 2**20:.0f} MiB" if entry.max_rss is not None else None,
        "cpu_time": str(timedelta(seconds=round(entry.cpu_s))),
        "nodes_by_start": list(entry.starts) if len(entry.starts) > 1 else None,
    }
