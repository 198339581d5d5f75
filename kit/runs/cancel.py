"""Cancels runs: ranks that run are asked to save and end; those that were asked before, and runs that wait, Slurm ends at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from kit.runs import chain, facts, secret
from kit.runs.status import Status
from kit.slurm import client
from kit.slurm.client import JobId
from kit.spec.paths import RunPaths


def cancel(runs: Sequence[Status], *, env: Mapping[str, str]) -> None:
    """Cancel runs that Slurm still has, with all links of their chains. SlurmError when it does not know one.

    Slurm is told at most twice, however many they are; those that wait come first, so that none takes the place of one that ends.
    """
    at_once: list[JobId] = []
    gently: list[JobId] = []
    for one in runs:
        if one.job_id is not None and one.active:
            chain.cancel([link for link in one.manifest.links if link != one.job_id], env=env)
            asked = one.state != "RUNNING" or _was_asked(one.run_dir)
            (at_once if asked else gently).append(one.job_id)
    if at_once:
        client.cancel(*at_once, env=env)
    if gently:
        client.cancel(*gently, env=env, gently=True)
    for one in runs:
        if one.state == "PENDING":
            # Its batch script, which would remove them, will not start.
            secret.remove(one.run_dir)
            RunPaths(one.run_dir).cancelled.touch()


def _was_asked(run_dir: Path) -> bool:
    """Whether the batch script had TERM since its last start: an earlier one may have had Slurm's own, for a requeue."""
    this_start = takewhile(lambda e: e["event"] != "start", reversed(facts.events(run_dir)))
    return any(e["event"] == "signal" and e.get("name") == "TERM" for e in this_start)
