"""Cancels runs: running ranks are asked to save and end. Slurm ends waiting runs at once, and runs that were asked before."""

from __future__ import annotations

import contextlib
import getpass
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from kit.files import atomic_write
from kit.hosts.status import Status
from kit.record import own_run, run_facts, secret, unmade_points
from kit.schema.run_paths import RunPaths
from kit.slurm import client
from kit.slurm.client import JobId
from kit.slurm.run_local_or_ssh import OverSsh
from kit.submit import chain

# How long a batch script may take to record the request: its traps wait for running Slurm commands, and files of other nodes become
# visible late.
_NOTED_S = 15.0
_POLL_S, _LOOK_OVER_SSH_S = 0.2, 1.0


def cancel(runs: Sequence[Status], *, env: Mapping[str, str]) -> None:
    """Cancel runs that Slurm still has, with all links of their chains. SlurmError when it does not know one.

    This needs at most three calls of Slurm, for any number of runs. Waiting jobs are cancelled first, so that none starts on the
    nodes of a job that ends. A batch script that does not record the request has not begun or is dead; then Slurm ends its job.

    RunError for a run of another user, whose record may name any job; then nothing is cancelled.
    """
    for one in runs:
        own_run.require(one.run_dir, to="cancel its job")
    if isinstance(env, OverSsh):
        _cancel_over_ssh(runs, env)
        return
    at_once: list[JobId] = []
    gently: dict[JobId, Path] = {}
    for one in runs:
        if one.job_id is not None and one.active:
            chain.cancel([link for link in one.facts.links if link != one.job_id], env=env)
            # A script that is not the kit's has what it would have without the kit: Slurm's own TERM for all of its processes.
            asks = not RunPaths(one.run_dir).script.exists()
            if asks and one.state == "RUNNING" and _has_begun(one.run_dir) and not _was_asked(one.run_dir):
                gently[one.job_id] = one.run_dir
            else:
                at_once.append(one.job_id)
    if at_once:
        client.cancel(*at_once, env=env)
    if gently:
        client.cancel(*gently, env=env, gently=True)
        _end_unresponsive(gently, env=env)
    for one in runs:
        if unmade_points.is_unmade(one.run_dir):
            unmade_points.mark_cancelled(one.run_dir)
            continue
        _forget_if_waiting(one, ended=one.job_id in at_once)
        if one.active:
            _note(one.run_dir)


def _forget_if_waiting(one: Status, *, ended: bool) -> None:
    """Remove what a batch script that will not start cannot remove itself. ended: by Slurm, without asking the batch script."""
    # It waits, in the queue or for a node's prolog.
    if one.state == "PENDING" or (one.active and ended and not _has_begun(one.run_dir)):
        secret.remove(one.run_dir)
    if one.state == "PENDING":
        RunPaths(one.run_dir).cancelled.touch()


def _cancel_over_ssh(runs: Sequence[Status], env: OverSsh) -> None:
    from kit.hosts import remote_clusters
    from kit.submit import remote_cancel

    active = [one for one in runs if one.job_id is not None and one.active]
    cluster = remote_clusters.holding(active[0].run_dir) if active else None
    if cluster is None:
        return
    gently = [
        one for one in active if one.state == "RUNNING" and _has_begun(one.run_dir) and not _was_asked(one.run_dir)
    ]
    remote_cancel.send(cluster, [one for one in active if one not in gently], gently)
    asked = {one.job_id: one.run_dir for one in gently if one.job_id is not None}
    _end_unresponsive(asked, env=env, look=cluster.refresh, pause=_LOOK_OVER_SSH_S)


def _note(run_dir: Path) -> None:
    """Record who cancelled the run, for `kit why`."""
    with contextlib.suppress(OSError):
        atomic_write.write(RunPaths(run_dir).cancelled_by, f"{getpass.getuser()}\n", durable=False)


def _end_unresponsive(
    asked: Mapping[JobId, Path],
    *,
    env: Mapping[str, str],
    look: Callable[[], object] = lambda: None,
    pause: float = _POLL_S,
) -> None:
    """Wait until each batch script has recorded the request, and let Slurm end the jobs of the others.

    look: called before each check of the runs' records. pause: seconds between checks.
    """
    until = time.monotonic() + _NOTED_S
    deaf = dict(asked)
    while deaf and time.monotonic() < until:
        look()
        deaf = {job_id: run_dir for job_id, run_dir in deaf.items() if not _has_noted(run_dir)}
        if deaf:
            time.sleep(pause)
    for run_dir in deaf.values():
        print(f"kit: {run_dir.name}: its batch script does not answer; Slurm ends the job", file=sys.stderr)
    if deaf:
        client.cancel(*deaf, env=env)


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
