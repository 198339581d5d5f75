"""Cancels runs: ranks that run are asked to save and end; those that were asked before, and runs that wait, Slurm ends at once."""

from __future__ import annotations

import contextlib
import getpass
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from kit.runs import atomic_write, chain, run_facts, secret
from kit.runs.status import Status
from kit.slurm import client
from kit.slurm.client import JobId
from kit.slurm.run_local_or_ssh import OverSsh
from kit.spec.run_paths import RunPaths

# How long a batch script may take to note that it was asked: its traps wait for commands of Slurm that it runs, and files of other
# nodes show late.
_NOTED_S = 15.0
_POLL_S, _LOOK_OVER_SSH_S = 0.2, 1.0


def cancel(runs: Sequence[Status], *, env: Mapping[str, str]) -> None:
    """Cancel runs that Slurm still has, with all links of their chains. SlurmError when it does not know one.

    Slurm is told at most three times, however many they are; those that wait come first, so that none takes the place of one that
    ends. A batch script that was asked and does not note it has not begun, or is gone: Slurm ends that job.
    """
    if isinstance(env, OverSsh):
        _cancel_over_ssh(runs, env)
        return
    at_once: list[JobId] = []
    gently: dict[JobId, Path] = {}
    for one in runs:
        if one.job_id is not None and one.active:
            chain.cancel([link for link in one.manifest.links if link != one.job_id], env=env)
            if one.state == "RUNNING" and _has_begun(one.run_dir) and not _was_asked(one.run_dir):
                gently[one.job_id] = one.run_dir
            else:
                at_once.append(one.job_id)
    if at_once:
        client.cancel(*at_once, env=env)
    if gently:
        client.cancel(*gently, env=env, gently=True)
        _end_the_deaf(gently, env=env)
    for one in runs:
        if one.state == "PENDING":
            # Its batch script, which would remove them, will not start.
            secret.remove(one.run_dir)
            RunPaths(one.run_dir).cancelled.touch()
        if one.active:
            _note(one.run_dir)


def _cancel_over_ssh(runs: Sequence[Status], env: OverSsh) -> None:
    from kit.runs import remote_cancel, remote_clusters

    active = [one for one in runs if one.job_id is not None and one.active]
    cluster = remote_clusters.holding(active[0].run_dir) if active else None
    if cluster is None:
        return
    gently = [
        one for one in active if one.state == "RUNNING" and _has_begun(one.run_dir) and not _was_asked(one.run_dir)
    ]
    remote_cancel.send(cluster, [one for one in active if one not in gently], gently)
    asked = {one.job_id: one.run_dir for one in gently if one.job_id is not None}
    _end_the_deaf(asked, env=env, look=cluster.refresh, pause=_LOOK_OVER_SSH_S)


def _note(run_dir: Path) -> None:
    """By whom it was cancelled, for `kit why`."""
    with contextlib.suppress(OSError):
        atomic_write.write(RunPaths(run_dir).cancelled_by, f"{getpass.getuser()}\n", durable=False)


def _end_the_deaf(
    asked: Mapping[JobId, Path],
    *,
    env: Mapping[str, str],
    look: Callable[[], object] = lambda: None,
    pause: float = _POLL_S,
) -> None:
    """Wait until each batch script has noted the request, and let Slurm end the jobs of those that do not.

    look: is called before each look at the runs' records, `pause` seconds apart.
    """
    until = time.monotonic() + _NOTED_S
    deaf = dict(asked)
    while deaf and time.monotonic() < until:
        look()
        deaf = {job_id: run_dir for job_id, run_dir in deaf.items() if not _has_heard(run_dir)}
        if deaf:
            time.sleep(pause)
    for run_dir in deaf.values():
        print(f"kit: {run_dir.name}: its batch script does not answer; Slurm ends the job", file=sys.stderr)
    if deaf:
        client.cancel(*deaf, env=env)


def _this_start(run_dir: Path) -> list[Mapping[str, Any]]:
    """What the batch script recorded since its last start, newest first; that start itself comes last."""
    newest_first = list(reversed(run_facts.events(run_dir)))
    since = list(takewhile(lambda e: e["event"] != "start", newest_first))
    return [*since, *newest_first[len(since) : len(since) + 1]]


def _has_begun(run_dir: Path) -> bool:
    """Whether there is a batch script to ask. Slurm says RUNNING while a node's prolog still runs, and after a requeue again."""
    events = _this_start(run_dir)
    return bool(events) and events[0]["event"] not in {"requeue", "end"}


def _was_asked(run_dir: Path) -> bool:
    """Whether the batch script had TERM since its last start: an earlier one may have had Slurm's own, for a requeue."""
    return any(e["event"] == "signal" and e.get("name") == "TERM" for e in _this_start(run_dir))


def _has_heard(run_dir: Path) -> bool:
    """Whether it noted the request, or ended by itself meanwhile."""
    return _was_asked(run_dir) or not _has_begun(run_dir)
