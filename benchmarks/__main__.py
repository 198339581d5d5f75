"""`python -m benchmarks [NAME[,NAME] [OPTIONS]]`: some benchmarks, or all of them, and at the end the goals that were missed.

Each runs in a process of its own, so that what one has loaded does not slow down or enlarge the next. Options are of one benchmark.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._common import GOALS, Goal

_BY_NAME = {"forecast", "two_clusters", "when"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a benchmark ended. code: 0, 1 where a goal was missed, or that of its failure. goals: those that it printed."""

    name: str
    code: int
    minutes: float
    goals: Sequence[Goal]

    def __str__(self) -> str:
        """Its row of the last table."""
        missed = "; ".join(f"{goal.name} {goal.value:.3g} ({goal.limit})" for goal in self.goals if not goal.met)
        bounded = sum(goal.bound is not None for goal in self.goals)
        met = sum(goal.bound is not None and goal.met for goal in self.goals)
        if self.code and not missed:
            missed = f"{'' if self.goals else 'its table is missing; '}ended with {self.code}"
        return f"| {self.name} | {self.minutes:.1f} | {met} of {bounded} | {missed} |"


def main(arguments: Sequence[str]) -> int:
    """Run the named benchmarks, or every module in this folder. Returns 1 where one missed a goal or failed."""
    known = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
    # These need a quarter of an hour, or a quiet machine. They run only by name, as in `make bench-when`.
    chosen = arguments[0].split(",") if arguments else [name for name in known if name not in _BY_NAME]
    if unknown := [name for name in chosen if name not in known]:
        print(f"no such benchmark: {unknown[0]}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    # A benchmark takes its cluster down at its end. TERM would leave the cluster up.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if len(chosen) == 1:
        return int(importlib.import_module(f"benchmarks.{chosen[0]}").main(arguments[1:]))
    if arguments[1:]:
        print(f"options are of one benchmark: {' '.join(arguments[1:])}", file=sys.stderr)
        return 2
    for name, problem in _without_table(chosen):
        print(f"{name} will have no table: {problem}", file=sys.stderr, flush=True)
    outcomes = [_outcome(name) for name in chosen]
    print("\n| benchmark | minutes | goals met | missed |\n|---|---|---|---|")
    for one in outcomes:
        print(one)
    return int(any(one.code for one in outcomes))


def _without_table(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each benchmark that lacks something on this machine, and what. The whole run takes hours."""
    for name in names:
        lacking = getattr(importlib.import_module(f"benchmarks.{name}"), "lacking", None)
        if lacking and (problem := lacking()):
            yield name, problem


def _outcome(name: str) -> Outcome:
    print(f"\n## {name}\n", flush=True)
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("r", encoding="utf-8", prefix="kit-bench-") as goals:
        process = subprocess.Popen([sys.executable, "-m", "benchmarks", name], env=os.environ | {GOALS: goals.name})
        try:
            code = process.wait()
        finally:
            process.terminate()  # if this process was told to end
            process.wait()
        printed = [Goal(**json.loads(line)) for line in goals]
    return Outcome(name=name, code=code, minutes=(time.monotonic() - began) / 60, goals=printed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
