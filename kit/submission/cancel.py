"""Cancels runs: running ranks are asked to save and end. Slurm ends waiting runs at once, and runs that were asked before."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from kit.hosts.host import Host, JobToEnd
from kit.hosts.status import Status
from kit.record import own_run, run_facts
from kit.schema.run_paths import RunPaths
from kit.slurm import client
from kit.slurm.client import JobId

# How long a batch script may take to record the request: its traps wait for running Slurm commands, and files of other nodes become
# visible late.
_NOTED_S = 15.0


def cancel(runs: Sequence[Status], *, host: Host) -> None:
    """Cancel runs that Slurm still has, with all links of their chains. SlurmError when it does not know one.

    A batch script that does not record the request has not begun or is dead; then Slurm ends its job.

    RunError for a run of another user, whose record may name any job; then nothing is cancelled.
    """
    for run in runs:
        own_run.require(run.run_dir, to="cancel its job")
    jobs = [_to_end(run, run.job_id) for run in runs if run.job_id is not None and run.active]
    if not jobs:
        return
    host.cancel(jobs)
    _end_unresponsive({job.job_id: job.run_dir for job in jobs if job.how == "gently"}, host)


def _to_end(run: Status, job_id: JobId) -> JobToEnd:
    begun = _has_begun(run.run_dir)
    how: Literal["waiting", "now", "gently"] = "waiting" if run.state == "PENDING" else "now"
    # A script that is not the kit's has what it would have without the kit: Slurm's own TERM for all of its processes.
    asks = not RunPaths(run.run_dir).script.exists()
    if asks and run.state == "RUNNING" and begun and not _was_asked(run.run_dir):
        how = "gently"
    return JobToEnd(run_dir=run.run_dir, job_id=job_id, how=how, begun=begun, links=run.facts.links)


def _end_unresponsive(asked: Mapping[JobId, Path], host: Host) -> None:
    """Wait until each batch script has recorded the request, and let Slurm end the jobs of the others."""
    until = time.monotonic() + _NOTED_S
    deaf = dict(asked)
    while deaf and time.monotonic() < until:
        host.refresh()
        deaf = {job_id: run_dir for job_id, run_dir in deaf.items() if not _has_noted(run_dir)}
        if deaf:
            time.sleep(host.look_s)
    for run_dir in deaf.values():
        print(f"kit: {run_dir.name}: its batch script does not answer; Slurm ends the job", file=sys.stderr)
    if deaf:
        client.cancel(*deaf, env=host.env())


def _this_start(run_dir: Path) -> list[Mapping[str, Any]]:
    """The records of the batch script since its last start, newest first; the start itself is last."""
    newest_first = list(reversed(run_facts.events(run_dir)))
    since = list(takewhile(lambda e: e["event"] != "start", newest_first))
    return [*since, *newest_first[len(since) : len(since) + 1]]


def _has_begun(run_dir: Path) -> bool:
    """Whether the batch script has started and can be asked.

    Slurm says RUNNING during a node's prolog, and again after a requeue.
    """
    events = _this_start(run_dir)
    return bool(events) and events[0]["event"] not in {"requeue", "end"}


def _was_asked(run_dir: Path) -> bool:
    """Whether the batch script got TERM since its last start. An earlier start may have got Slurm's own TERM, for a requeue."""
    return any(e["event"] == "signal" and e.get("name") == "TERM" for e in _this_start(run_dir))


def _has_noted(run_dir: Path) -> bool:
    """Whether the batch script has recorded the request, or has ended."""
    return _was_asked(run_dir) or not _has_begun(run_dir)
