"""Measures what `kit runs` and `kit status` cost in a folder of 10,000 runs, beyond the start of the program.

    python -m benchmarks listing [--runs 10000] [--rounds 5]

Needs neither Slurm nor an image. Times are processor seconds, user and system, so that other work does not count; medians.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks._common import Goal, project, report
from kit import shell
from kit.record import manifest
from kit.schema.run_paths import RunPaths
from kit.submission import prepare_run

JOB = 'name = "bench"\nlauncher = "ddp"\n[container]\nruntime = "bare"\n'
FIRST = datetime(2026, 11, 1, tzinfo=UTC)


def main(words: Sequence[str] = ()) -> int:
    """Make the runs, list them, and print the table. Returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks listing")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(words)
    with project("bench", "embedded = true\n[node]\ncpus = 4\n", JOB) as folder:
        names = make(folder, options.runs)
        measured = measure(folder, names[len(names) // 2], options.rounds)
    return report(measured)


def make(folder: Path, count: int) -> list[str]:
    """Make `count` runs that have ended. Returns their names."""
    job = folder / "job.toml"
    made = prepare_run.prepare_job(job, cluster="bench", overrides=[], containers=False)
    of = manifest.make_manifest(made.plan, job_file=job, user="ada", now=FIRST, slurm_version="22.05")
    names = [f"bench-20261101-{number:06d}-{number % 65536:04x}" for number in range(count)]
    for number, name in enumerate(names):
        paths = RunPaths(folder / "runs" / name)
        paths.state.mkdir(parents=True)
        facts = {"run_id": name, "job_id": number + 1, "submitted_at": FIRST + timedelta(seconds=number)}
        of.model_copy(update=facts).write(paths.manifest, durable=False)
        events = [{"event": "start", "job_id": number + 1, "nodes": "n1"}, {"event": "end", "exit_code": "0"}]
        paths.events.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return names


def measure(folder: Path, name: str, rounds: int) -> list[Goal]:
    """Compare each command with `kit schema job`, which starts and reads nothing."""
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "XDG_DATA_HOME": str(folder / "data")}

    def cost(*words: str, times: int = rounds) -> float:
        return statistics.median(cpu_s([sys.executable, "-m", "kit", *words], folder, env) for _ in range(times))

    at = ("--runs", str(folder / "runs"))
    start = cost("schema", "job")
    first = cost("runs", *at, times=1)
    return [
        Goal(name="start of the program", value=start, unit="s"),
        Goal(name="kit runs, no index yet", value=first - start, unit="s"),
        Goal(name="kit runs", value=cost("runs", *at) - start, unit="s", bound=1.0),
        Goal(name="kit status ID", value=cost("status", name, *at) - start, unit="s", bound=0.3),
        Goal(name="kit status, start of an id", value=cost("status", name[:-5], *at) - start, unit="s", bound=0.3),
        Goal(name="kit status, the newest", value=cost("status", *at) - start, unit="s", bound=0.5),
    ]


def cpu_s(argv: Sequence[str], cwd: Path, env: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shell.run(argv, cwd=cwd, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
