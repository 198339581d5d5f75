"""Measures earlier runs of the same job: seconds of a step, of a start, of a save; memory of a rank.

It reads the metrics and events of runs with the same name on the same cluster, the newest first. Only a few runs are read, because
a submit must not wait for this.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from kit.errors import RunError
from kit.files import untrusted_files
from kit.forecast import gpt_program_options
from kit.forecast.gpt_program_options import GptTraining
from kit.planning.plan import Plan
from kit.record import manifest, metrics, run_facts
from kit.record.manifest import Manifest
from kit.schema.run_paths import RunPaths, is_launchers

_MOST_RUNS = 8
# Metrics larger than this are not read.
_MOST_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """One run, in seconds and bytes. None if the run reported no value.

    same: it has the new job's program, options and number of ranks. begins: from the start of the batch script to the first step.
    step: the median time of a step. quarters: this median for each quarter of the run. save, evaluate: median time of one. ends:
    time after the last step. whole: total time of a run that ended well.
    """

    run_id: str
    same: bool
    program: GptTraining | None
    begins: float | None
    step: float | None
    quarters: tuple[float, ...]
    save: float | None
    evaluate: float | None
    ends: float | None
    whole: float | None
    memory: int | None
    checkpoint: int | None


def newest(plan: Plan) -> list[PastRun]:
    """Runs of this job's name, the newest first, without those whose folders cannot be used."""
    runs_dir = plan.decisions.site.runs_dir
    prefix = f"{plan.job.name}-"
    try:
        with os.scandir(runs_dir) as entries:
            names = [one.name for one in entries if one.name.startswith(prefix) and one.name != plan.run_id]
    except OSError:
        return []
    # A run's name ends with the time of its submit.
    names = sorted(names, key=lambda name: name[len(prefix) :], reverse=True)[:_MOST_RUNS]
    return [one for name in names if (one := _read(runs_dir / name, plan)) is not None]


def _read(run_dir: Path, plan: Plan) -> PastRun | None:
    paths = RunPaths(run_dir)
    try:
        record = manifest.read_manifest(paths.manifest)
        job = tomllib.loads(untrusted_files.read_bytes(paths.job).decode())
    except (RunError, OSError, ValueError):
        return None
    if record.job_name != plan.job.name or record.cluster != plan.cluster or record.launcher != plan.job.launcher:
        return None
    reports = _records(run_dir)
    steps = [report for report in reports if report.get("kind") == "step"]
    began, ended, code = _lived(run_dir)
    started = next((report for report in reports if report.get("kind") == "start"), None)
    final = next((report for report in reversed(reports) if report.get("kind") == "final"), None)
    took = _steps(started, steps)
    return PastRun(
        run_id=record.run_id,
        same=_same(job, record, plan),
        program=_program(job, record, plan),
        begins=_between(began, _time(started)),
        step=median(took) if took else None,
        quarters=_quarters(took),
        save=_seconds(reports, "saved"),
        evaluate=_seconds(reports, "eval"),
        ends=_between(_time(steps[-1] if steps else None), ended) if final else None,
        whole=ended - began if began is not None and ended is not None and code == 0 else None,
        memory=max(
            (int(report["memory_bytes"]) for report in steps if _is_number(report.get("memory_bytes"))), default=None
        ),
        checkpoint=_checkpoint(paths.checkpoints),
    )


def _records(run_dir: Path) -> Sequence[Mapping[str, Any]]:
    found = metrics.files(run_dir)
    try:
        if len(found) != 1 or found[0].stat().st_size > _MOST_BYTES:
            return []
    except OSError:
        return []
    return metrics.records(run_dir)


def _same(job: Mapping[str, Any], record: Manifest, made: Plan) -> bool:
    args = tuple(job.get("args", ()))
    program = all(job.get(key) == getattr(made.job, key) for key in ("script", "module"))
    command = tuple(job.get("command") or ()) == tuple(made.job.command or ())
    return program and command and args == made.job.args and record.world_sizes == made.world_sizes


def _program(job: Mapping[str, Any], record: Manifest, plan: Plan) -> GptTraining | None:
    if not is_launchers(job):
        return None
    ranks = next(iter(record.world_sizes.values()), 0) if len(record.world_sizes) == 1 else 0
    script = job.get("script") or plan.decisions.resolved.launcher.script
    every = job.get("checkpoint", {}).get("every") or 0
    gpus = gpt_program_options.has_gpus(plan)
    return gpt_program_options.read_training(
        record.launcher, str(script), job.get("args", ()), ranks=ranks, every=every, gpus=gpus
    )


def _lived(run_dir: Path) -> tuple[float | None, float | None, int | None]:
    """Start and end of its batch script, in seconds since the epoch, and its exit code; only for a run that was started once."""
    events = run_facts.events(run_dir)
    begun = [one for one in events if one["event"] == "start"]
    ended = [one for one in events if one["event"] == "end"]
    if len(begun) != 1:
        return None, None, None
    last = ended[-1] if ended else None
    code = int(str(last.get("exit_code", 1))) if last else None
    return _time(begun[0]), _time(last), code


def _steps(started: Mapping[str, Any] | None, steps: Sequence[Mapping[str, Any]]) -> list[float]:
    """Seconds of each logged step. The first step, which warms up, counts only if there is no other."""
    tokens = (started or {}).get("tokens_per_step")
    rates = [one["tokens_per_second"] for one in steps if _is_number(one.get("tokens_per_second"))]
    if not _is_number(tokens) or not rates or min(rates) <= 0:
        return []
    assert tokens is not None
    return [float(tokens / rate) for rate in (rates[1:] or rates)]


def _quarters(took: Sequence[float]) -> tuple[float, ...]:
    """The median of each quarter. One slow step says nothing about a whole run. A slow quarter shows that others used the node."""
    cuts = [len(took) * place // 4 for place in range(5)]
    return tuple(median(part) for a, b in pairwise(cuts) if (part := took[a:b]))


def _seconds(told: Sequence[Mapping[str, Any]], kind: str) -> float | None:
    found = [one["seconds"] for one in told if one.get("kind") == kind and _is_number(one.get("seconds"))]
    return median(found) if found else None


def _checkpoint(folder: Path) -> int | None:
    """Bytes of its newest checkpoint, from any program; None if there is none."""
    try:
        inside = [one for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".")]
        newest = max(inside, key=lambda one: one.stat().st_mtime, default=None)
        return sum(_sizes(newest)) if newest is not None else None
    except OSError:
        return None


def _sizes(folder: Path) -> Iterator[int]:
    for place, _, names in os.walk(folder):
        yield from (os.lstat(f"{place}/{name}").st_size for name in names)


def _time(record: Mapping[str, Any] | None) -> float | None:
    try:
        return datetime.fromisoformat(str((record or {}).get("time"))).timestamp()
    except ValueError:
        return None


def _between(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None else max(0.0, last - first)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
