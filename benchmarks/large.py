"""Measures large inputs: a dry run of a sweep of 100,000 points, and a log of gigabytes compared with cat.

    python -m benchmarks large [--points 100000] [--log-mb 5000] [--rounds 3]

Needs neither Slurm nor an image. Processor seconds, user and system, do not count other work on the machine. For cat they are those
of both processes of `cat LOG | cat`, because the kit runs as `kit logs | cat`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._common import Goal, project, report
from benchmarks.listing import JOB
from kit import shell

SWEEP = """
[sweep.random]
count = {points}
keys."args.--lr" = {{ log_uniform = [1e-5, 1e-1] }}
keys."args.--seed" = {{ uniform = [0, 1000000], integer = true }}
"""
# Runs the words as a pipe into cat, and prints the cost of both.
COST = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
first = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
subprocess.run(["cat"], stdin=first.stdout, stdout=subprocess.DEVNULL, check=True)
assert first.wait() == 0
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, time.perf_counter() - began, used.ru_maxrss / 1024]))
"""
LINE = "2026-11-22 10:00:00 step {:08d} loss 2.{:05d} lr 3.0e-04 tokens/s {} ms 141.0\n"
LONG_MB = 200


@dataclass(frozen=True)
class Cost:
    """The cost of a command and its children: processor and wall seconds, MB of the largest process."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def main(words: Sequence[str] = ()) -> int:
    """Measure, and print the table. Returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks large")
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--log-mb", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(words)
    job = JOB.replace("[container]", "[resources]\nnodes = 1\ngpus_per_node = 0\n[container]")
    with project("bench", "embedded = true\n[node]\ncpus = 4\n", job) as folder:
        goals = sweep(folder, job, options.points) + logs(folder, options.log_mb, options.rounds)
    return report(goals)


def sweep(folder: Path, job: str, points: int) -> list[Goal]:
    """`kit sweep --dry-run` of `points` random points."""
    (folder / "sweep.toml").write_text(job + SWEEP.format(points=points))
    found = cost(folder, *kit("sweep", "sweep.toml", "--dry-run", "--no-container", "--cluster", "bench"))
    name = f"`kit sweep --dry-run`, {points:,} points"
    return [
        Goal(name=f"{name}, processor", value=found.cpu_s, unit="s", bound=30.0),
        Goal(name=f"{name}, peak", value=found.peak_mb, unit="MB", bound=150.0),
    ]


def logs(folder: Path, megabytes: int, rounds: int) -> list[Goal]:
    """`kit logs` of a log of `megabytes` MB in short lines, and of a log whose only line has 200 MB."""
    run = folder / "runs" / "bench-20261122-100000-abcd"
    log = run / "logs" / "rank-0.log"
    log.parent.mkdir(parents=True)
    write_log(log, megabytes << 20)
    shown, raw = [], []
    for _ in range(rounds):
        shown.append(cost(folder, *kit("logs", str(run))))
        raw.append(cost(folder, "cat", str(log)))
    ours, cat = (statistics.median(one.cpu_s for one in of) for of in (shown, raw))
    wall, cat_wall = (statistics.median(one.wall_s for one in of) for of in (shown, raw))
    log.write_bytes(b"")
    with log.open("wb") as sink:
        for _ in range(LONG_MB):
            sink.write(b"x" * (1 << 20))
    long = cost(folder, *kit("logs", str(run)))
    size = f"{megabytes / 1000:g} GB"
    return [
        Goal(name=f"`cat`, {size}, wall", value=cat_wall, unit="s"),
        Goal(name=f"`kit logs`, {size}, wall", value=wall, unit="s"),
        Goal(name=f"`cat`, {size}, processor", value=cat, unit="s"),
        Goal(name=f"`kit logs`, {size}, processor", value=ours, unit="s"),
        Goal(name="`kit logs` / `cat`, processor", value=ours / cat, bound=3.0),
        Goal(name=f"`kit logs`, {size}, peak", value=max(one.peak_mb for one in shown), unit="MB", bound=200.0),
        Goal(name=f"`kit logs`, a line of {LONG_MB} MB, peak", value=long.peak_mb, unit="MB", bound=200.0),
    ]


def write_log(path: Path, size: int) -> None:
    """Write lines like those of a training."""
    block = "".join(LINE.format(step, step * 7919 % 100_000, 400_000 + step % 999) for step in range(10_000)).encode()
    with path.open("wb") as sink:
        while (left := size - sink.tell()) > 0:
            sink.write(block[:left])


def kit(*words: str) -> list[str]:
    """The argv of a command of the kit."""
    return [sys.executable, "-m", "kit", *words]


def cost(folder: Path, *argv: str) -> Cost:
    """The cost of a command whose output is read by cat."""
    return Cost(*json.loads(shell.run([sys.executable, "-c", COST, *argv], cwd=folder).stdout))
