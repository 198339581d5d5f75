"""Waits for many runs at once: until the first of them ends, stalls or, if asked, starts.

Slurm is asked for all runs together, twice a minute at most, also by calls in a row. In between only the runs' own records are
read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from kit.hosts import status
from kit.hosts.status import UNKNOWN, Status
from kit.mcp import as_data
from kit.mcp.session import AgentSession
from kit.notices.happened import happened
from kit.record import how_ended, run_facts
from kit.schema.notify import Event
from kit.slurm.client import JobId

_LOOK_S, _ASK_S, _TELL_S = 1.0, 30.0, 10.0
# Events that end a wait. For a run that has ended, `happened` returns either fail or end.
_ALWAYS: tuple[Event, ...] = ("stall", "fail", "end")
Progress = Callable[[float, float, str], Awaitable[None]]


async def wait(
    session: AgentSession, run_dirs: Sequence[Path], *, timeout_s: float, starts: bool, progress: Progress
) -> dict[str, Any]:
    """The first news of these runs, or their states after `timeout_s` seconds. progress: called every ten seconds.

    A session reports a stall or a start once, and the end of a run at each call.
    """
    on: tuple[Event, ...] = ("start", *_ALWAYS) if starts else _ALWAYS
    began = told_at = time.monotonic()
    lost = set[Path]()
    while True:
        asked = time.monotonic()
        runs = await asyncio.to_thread(status.read_statuses, run_dirs, queue=session.recent.about(_jobs(run_dirs)))
        news = [event for run in runs for event in _news(session, run, on, gone=run.run_dir in lost)]
        lost = {run.run_dir for run in runs if run.state == "LOST"}
        left = began + timeout_s - time.monotonic()
        if news or left <= 0:
            return _answer(runs, news, timed_out=not news)
        before = _records(run_dirs)
        while time.monotonic() < min(asked + _ASK_S, began + timeout_s) and _records(run_dirs) == before:
            if time.monotonic() - told_at >= _TELL_S:
                told_at = time.monotonic()
                active = sum(run.active or run.state == UNKNOWN for run in runs)
                await progress(told_at - began, timeout_s, f"{active} of {len(runs)} runs have not ended")
            await asyncio.sleep(_LOOK_S)


def _jobs(run_dirs: Sequence[Path]) -> dict[str, list[list[JobId]]]:
    """Cluster -> the jobs of each run that has not closed its record."""
    by_cluster: dict[str, list[list[JobId]]] = {}
    for run_dir in run_dirs:
        facts = run_facts.read_facts(run_dir)
        if not how_ended.is_over(run_dir, facts):
            jobs = [job for job in (facts.slurm_id, *facts.links) if job is not None]
            by_cluster.setdefault(facts.cluster, []).append(jobs)
    return by_cluster


def _records(run_dirs: Sequence[Path]) -> list[tuple[object, ...]]:
    """What the runs' own records say: it changes when there may be news."""
    every: list[tuple[object, ...]] = []
    for run_dir in run_dirs:
        facts = run_facts.read_facts(run_dir)
        stalls = sum(event["event"] == "stall" for event in run_facts.events(run_dir))
        every.append((facts.started, facts.restarts, facts.exit_code, how_ended.is_over(run_dir, facts), stalls))
    return every


def _news(session: AgentSession, run: Status, on: tuple[Event, ...], *, gone: bool) -> list[dict[str, Any]]:
    """The events of a run that this session has not told. gone: the run was lost at the look before, too."""
    news = []
    if run.state in {UNKNOWN, "SUBMITTED"}:
        return []
    for event in happened(run, on, now=time.time(), gone=gone):
        key = f"{run.run_dir}/{event.key}"
        ended = event.event in {"fail", "end"}
        if ended or key not in session.told:
            session.told.add(key)
            news.append(
                {
                    "run": run.run_dir.name,
                    "event": "end" if ended else event.event,
                    "state": run.state,
                    "exit_code": run.exit_code,
                }
            )
    return news


def _answer(runs: Sequence[Status], news: list[dict[str, Any]], *, timed_out: bool) -> dict[str, Any]:
    states = [
        {"run": one.run_dir.name, "state": one.state, "exit_code": one.exit_code, "reason": one.reason} for one in runs
    ]
    return as_data.marked({"news": news, "runs": states}, timed_out=timed_out, count=len(news))
