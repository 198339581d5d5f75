"""Waits for many runs at once: until the first of them ends, stalls or, if asked, starts or is requeued.

The loop of `kit wait` looks at the runs. Slurm is asked for all of them together, twice a minute at most, also by calls in a row.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kit.answers import wait_for_runs
from kit.answers.wait_for_runs import RunEvent, RunsWatch
from kit.hosts import other_jobs
from kit.mcp import as_data
from kit.mcp.session import AgentSession
from kit.record import how_ended, run_facts
from kit.record.run_facts import Facts
from kit.slurm.client import JobId

_TELL_S = 10.0
Progress = Callable[[float, float, str], Awaitable[None]]


async def wait(
    session: AgentSession, run_dirs: Sequence[Path], *, timeout_s: float, starts: bool, progress: Progress
) -> dict[str, Any]:
    """The first news of these runs, or their states after `timeout_s` seconds. progress: called every ten seconds.

    A session reports a stall or a start once, and the end of a run at each call. NoAnswerError if Slurm is silent for too long.
    """
    facts = {path: run_facts.read_facts(path) for path in run_dirs}
    warnings: list[str] = []
    watch = RunsWatch(
        run_dirs,
        queue=session.recent.about(_jobs(facts)),
        history=other_jobs.ask_accounting(say=warnings.append),
        say=warnings.append,
        again=True,
    )
    submissions = {path.name: one.slurm_id for path, one in facts.items()}
    seen = Counter[object]()
    began = told_at = time.monotonic()
    while True:
        found = await asyncio.to_thread(watch.look)
        news = [
            event
            for event in found
            if (starts or event.event in {"stalled", "ended"}) and _is_new(session, seen, event, submissions)
        ]
        now = time.monotonic()
        if news or not watch.waiting or now - began >= timeout_s:
            return _answer(watch, run_dirs, news, warnings)
        if now - told_at >= _TELL_S:
            told_at = now
            await progress(now - began, timeout_s, f"{len(watch.waiting)} of {len(facts)} runs have not ended")
        await asyncio.sleep(min(wait_for_runs.LOOK_S, began + timeout_s - now))


def _jobs(facts: Mapping[Path, Facts]) -> dict[str, list[list[JobId]]]:
    """Cluster -> the jobs of each run that has not closed its record."""
    by_cluster: dict[str, list[list[JobId]]] = {}
    for run_dir, known in facts.items():
        if not how_ended.is_over(run_dir, known):
            jobs = [job for job in (known.slurm_id, *known.links) if job is not None]
            by_cluster.setdefault(known.cluster, []).append(jobs)
    return by_cluster


def _is_new(
    session: AgentSession, seen: Counter[object], event: RunEvent, submissions: Mapping[str, JobId | None]
) -> bool:
    """Whether this session has not told of the event. seen: those of this call, which begins again with each submission's first."""
    if event.event == "ended":
        return True
    key = (event.run, submissions[event.run], event.event)
    seen[key] += 1
    new = seen[key] > session.told[key]
    session.told[key] = max(seen[key], session.told[key])
    return new


def _answer(watch: RunsWatch, run_dirs: Sequence[Path], news: list[RunEvent], warnings: list[str]) -> dict[str, Any]:
    states = [
        {"run": path.name, "state": run.state, "exit_code": run.exit_code, "reason": run.reason}
        for path in run_dirs
        if (run := watch.seen.get(path))
    ]
    found = {"news": [vars(one) for one in news], "runs": states, "warnings": warnings}
    return as_data.marked(found, timed_out=not news, count=len(news))
