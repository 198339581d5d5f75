"""Gathers a run's records from its folder. Missing or damaged files are tolerated."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from kit.files import untrusted_files
from kit.files.json_lines import is_usable_number
from kit.hosts.status import Status
from kit.ledger.records import Event, Failure, RankProcess, Records, Reported
from kit.record import metrics, run_facts, unmade_points
from kit.schema.run_paths import RunPaths
from kit.schema.world_size_text import PLAIN

# kit_rank.SPENT of templates/kit_node, in the order of the file.
SPENT = ("start", "rendezvous", "data", "compute", "communicate", "save", "evaluate", "compile", "first", "end")
_FILE = re.compile(r"slurm-(?P<job>[0-9]+)\.(?P<node>.+)\.[0-9]+\.spent")
_KNOWN = {"time", "epoch", "event", "job_id", "restart", "attempt"}


def records(run: Status, *, now: float) -> Records:
    """Everything known about a run. now: seconds since the epoch, for a run that has not ended."""
    run_dir = run.run_dir
    job = _job(unmade_points.described_in(run_dir))
    sizes = run.facts.world_sizes
    # Reports give the only role of a plain job an empty name.
    world = {"": sizes[PLAIN]} if list(sizes) == [PLAIN] else dict(sizes)
    events = tuple(_events(run_dir))
    ended = any(event.name == "end" for event in events[-1:])
    total, nodes = sum(world.values()), _number(job, "nodes", 1)
    return Records(
        run_id=run_dir.name,
        submitted=run.facts.submitted_at,
        now=now if run.active and not ended else 0.0,
        ended=_cancelled(run_dir),
        closed=_closed(run_dir, after=events[-1].at) if ended else 0.0,
        world=world or {"": 1},
        ranks_per_node=max(1, total // max(1, nodes)),
        gpus=_number(job, "gpus_per_node", 0) * nodes,
        events=events,
        processes=tuple(processes(run_dir)),
        failures=tuple(_failures(run_dir)),
        reported=tuple(_reported(run_dir)),
    )


def _cancelled(run_dir: Path) -> float:
    """The time when a waiting job was cancelled; 0 if it was not."""
    try:
        return unmade_points.cancelled(run_dir).stat().st_mtime
    except OSError:
        return 0.0


def _closed(run_dir: Path, *, after: float) -> float:
    """The time at which the batch script saw that all steps had ended; 0 if it ended before that.

    after: the time of the end event. A time before it, or more than an hour after it, is wrong and gives 0.
    """
    try:
        at = float(untrusted_files.read_bytes(RunPaths(run_dir).closed, most=64))
    except (OSError, ValueError):
        return 0.0
    return at if after <= at <= after + 3600 else 0.0


def _job(run_dir: Path) -> dict[str, Any]:
    """The table `resources` of the run's own job.toml; empty if it cannot be read."""
    try:
        found = tomllib.loads(untrusted_files.read_text(RunPaths(run_dir).job)).get("resources", {})
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _number(table: dict[str, Any], key: str, default: int) -> int:
    value = table.get(key)
    return value if isinstance(value, int) else default


def _events(run_dir: Path) -> Iterable[Event]:
    for line in run_facts.events(run_dir):
        at, job, attempt = (_float(line.get(key)) for key in ("epoch", "job_id", "attempt"))
        if at:
            values = {key: str(value) for key, value in line.items() if key not in _KNOWN}
            yield Event(at=at, name=str(line["event"]), job_id=int(job), attempt=int(attempt), values=values)


def processes(run_dir: Path) -> list[RankProcess]:
    """The last report of each process, from all jobs and starts of the run."""
    reports: dict[tuple[str, int, float], RankProcess] = {}
    for path in sorted(RunPaths(run_dir).monitor.glob("slurm-*.spent")):
        named = _FILE.fullmatch(path.name)
        if named is None:
            continue
        try:
            lines = untrusted_files.read_bytes(path).decode(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            report = _process(line, named["node"])
            if report is not None:
                reports[report.role, report.rank, report.began] = report
    return [*reports.values()]


def _process(line: str, node: str) -> RankProcess | None:
    """Parse a line of rank_progress::spent; None for a line that was cut off."""
    try:
        looked, now, more = line.split("\t")
        name, step, phase, since, took, every = now.split()[:6]
        attempt, began, worker, ended, first, *spent = more.split()
        role, _, rank = name.rpartition("@")
        return RankProcess(
            role=role,
            rank=int(rank),
            node=node,
            attempt=int(attempt),
            looked=float(looked),
            step=int(step),
            phase=phase,
            since=float(since),
            usual=float(took) * int(every),
            began=float(began),
            worker=float(worker),
            ended=float(ended),
            first=int(first) if int(first) >= 0 else None,
            spent={key: float(value) for key, value in zip(SPENT, spent, strict=True)},
        )
    except ValueError:
        return None


def _failures(run_dir: Path) -> Iterable[Failure]:
    """The failure records of lib/failures.sh: state/failures-ATTEMPT/ROLE-START/rank-RANK.CODE.

    A dot before ROLE means that the attempt continued. So does the subfolder `restarted`: torchrun started the rank again.
    """
    state = RunPaths(run_dir).state
    for path in (*state.glob("failures-*/*/rank-*"), *state.glob("failures-*/*/*/rank-*")):
        attempt, start, *kind = path.relative_to(state).parts[:-1]
        attempt, rank = attempt.removeprefix("failures-"), path.name.removeprefix("rank-").partition(".")[0]
        try:
            words = untrusted_files.read_text(path, most=4096).split()
            at = float(words[0]) if words else path.stat().st_mtime
        except (OSError, ValueError):
            continue
        if attempt.isdecimal() and rank.isdecimal():
            role, alone = words[4] if len(words) > 4 else "", start.startswith(".") or kind == ["restarted"]
            yield Failure(role=role, rank=int(rank), attempt=int(attempt), at=at, alone=alone)


def _reported(run_dir: Path) -> list[Reported]:
    """Rank 0's report of each attempt; with replica groups, that of the first group."""
    attempts: dict[int, dict[str, float]] = {}
    for record in metrics.records(run_dir):
        at, attempt = _time(record.get("time")), record.get("restart")
        if not at or not isinstance(attempt, int):
            continue
        report = attempts.setdefault(attempt, {"began": at, "first": 0.0, "last": at, "save": 0.0, "eval": 0.0})
        report["last"] = max(report["last"], at)
        kind = record.get("kind")
        if kind == "start":
            report["began"] = at
        elif kind in {"step", "epoch", "outer"} and not report["first"]:
            report["first"] = at
        elif kind in {"saved", "eval"}:
            report["save" if kind == "saved" else "eval"] += _float(record.get("seconds"))
    return [
        Reported(
            attempt=attempt,
            began=report["began"],
            first=report["first"] or report["began"],
            last=report["last"],
            save=report["save"],
            evaluation=report["eval"],
        )
        for attempt, report in sorted(attempts.items())
    ]


def _time(value: object) -> float:
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except ValueError:
        return 0.0


def _float(value: object) -> float:
    return float(str(value)) if is_usable_number(value) else 0.0
