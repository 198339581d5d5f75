"""Measures the results of a sweep of 10,000 points: `kit results`, as a whole process, the first time and again.

    python -m benchmarks results [--points 10000] [--records 20] [--rounds 5]

Needs neither Slurm nor an image. It is compared with the least work of any program that knows nothing of the points: read and parse
the same metrics with Python's json, in one process. Times are processor seconds, user and system; medians of the rounds.

"First" is without the kit's caches of the runs, which each such round deletes. Python's own bytecode is in a folder of the
benchmark, and is made before anything is measured. In a checkout that has just changed, or with PYTHONDONTWRITEBYTECODE, making it
would add half a second to each figure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks._common import Goal, project, report
from benchmarks.listing import FIRST, JOB, cpu_s
from kit.record import manifest
from kit.schema.run_paths import RunPaths
from kit.submission import prepare_run
from kit.sweeps.record import RecordedPoint, SentArray, SweepPaths, SweepRecord

NAME = "bench-20261101-000000-abcd"
PLAIN = """\
import json, pathlib, sys
print(sum(len([json.loads(line) for line in path.open()]) for path in pathlib.Path(sys.argv[1]).glob("*/metrics.jsonl")))
"""


def main(words: Sequence[str] = ()) -> int:
    """Make the sweep, ask for its results, and print the table. Returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks results")
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(words)
    with project("bench", "embedded = true\n[node]\ncpus = 4\n", JOB) as folder:
        sweep = make(folder, options.points, options.records)
        measured = measure(folder, sweep, options.rounds)
    return report(measured)


def make(folder: Path, points: int, records: int) -> Path:
    """A sweep whose points have all ended, each with `records` records of metrics. Returns its folder."""
    job = folder / "job.toml"
    made = prepare_run.prepare_job(job, cluster="bench", overrides=[], containers=False)
    of = manifest.make_manifest(made.plan, job_file=job, user="ada", now=FIRST, slurm_version="22.05")
    paths = SweepPaths(folder / "runs" / NAME)
    known = tuple(
        RecordedPoint(index=number, name="", values={"args.--lr": 1e-4 * (number + 1), "seed": number % 10})
        for number in range(points)
    )
    paths.points.mkdir(parents=True)
    SweepRecord(
        sweep_id=NAME,
        job_name="bench",
        job_file=str(job),
        cluster="bench",
        seed=1,
        submitted_at=FIRST,
        metric="test_loss",
        goal="min",
        points=known,
        arrays=(SentArray(number=0, job_id=7, members=tuple(range(points)), argv=()),),
    ).write(paths)
    for point in known:
        run = RunPaths(paths.point(point.index))
        run.state.mkdir(parents=True)
        facts = {"run_id": run.root.name, "job_id": 7, "array_task": point.index, "point": point.values}
        of.model_copy(update=facts).write(run.manifest, durable=False)
        events = [{"event": "start", "job_id": 7, "nodes": "n1"}, {"event": "end", "exit_code": "0"}]
        run.events.write_text("".join(f"{json.dumps(event)}\n" for event in events))
        run.metrics.write_text("".join(f"{json.dumps(one)}\n" for one in _records(point.index, records)))
    return paths.root


def _records(point: int, count: int) -> list[dict[str, object]]:
    """Records like those of the kit's programs."""
    at = [(FIRST + timedelta(seconds=number)).astimezone(UTC) for number in range(count)]
    return [
        {
            "kind": "final" if number + 1 == count else "step",
            "time": datetime.isoformat(when),
            "restart": 0,
            "step": 10 * number,
            "loss": 2.3 / (number + 1),
            "test_loss": (point * 7919 % 10007) / 10007,
            "lr": 1e-3,
            "tokens_per_second": 12345.6,
        }
        for number, when in enumerate(at)
    ]


def measure(folder: Path, sweep: Path, rounds: int) -> list[Goal]:
    """Measure whole processes, with the start of Python."""
    cache = folder / "cache"
    own = {"XDG_CACHE_HOME": cache, "XDG_DATA_HOME": folder / "data", "PYTHONPYCACHEPREFIX": folder / "bytecode"}
    env = {**os.environ, **{name: str(value) for name, value in own.items()}}
    env.pop("PYTHONDONTWRITEBYTECODE", None)

    def cost(*words: str, times: int = rounds) -> float:
        return statistics.median(cpu_s([sys.executable, *words], folder, env) for _ in range(times))

    results = ("-m", "kit", "results", str(sweep))
    cost(*results, times=1)
    plain = cost("-c", PLAIN, str(sweep / "points"))
    firsts = []
    for _ in range(rounds):
        shutil.rmtree(cache)
        firsts.append(cost(*results, times=1))
    first = statistics.median(firsts)
    again = cost(*results)
    return [
        Goal(name="json alone, every record of every point", value=plain, unit="s"),
        Goal(name="kit results, for the first time", value=first, unit="s", bound=2.0),
        Goal(name="kit results", value=again, unit="s", bound=2.0),
        Goal(name="kit results --json", value=cost(*results, "--json"), unit="s", bound=2.0),
        Goal(name="kit results, for the first time / json alone", value=first / plain),
    ]
