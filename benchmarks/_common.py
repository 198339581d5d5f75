"""Shared parts of the benchmarks: a goal with its bound, the table of goals, and a project to run in."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The environment variable with a file that gets each goal, for the table of several benchmarks.
GOALS = "KIT_BENCH_GOALS"


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A measured figure with its bound: an upper one, a lower one with `at_least`, or none for a figure that is only shown."""

    name: str
    value: float
    unit: str = ""
    bound: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure is within its bound."""
        if self.bound is None:
            return True
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    @property
    def limit(self) -> str:
        """The bound as it is printed; empty without one."""
        return "" if self.bound is None else f"{'>=' if self.at_least else '<='} {self.bound:g}"

    def __str__(self) -> str:
        """The figure's row of the table."""
        met = "" if self.bound is None else "yes" if self.met else "NO"
        return f"| {self.name} | {self.value:.3f} {self.unit} | {self.limit} | {met} |"


def report(goals: Sequence[Goal]) -> int:
    """Print the table. Returns 1 when a goal is missed."""
    print("| what | measured | bound | met |\n|---|---|---|---|")
    for goal in goals:
        print(goal)
    if path := os.environ.get(GOALS):
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(goal)) + "\n" for goal in goals)
    return 0 if all(goal.met for goal in goals) else 1


@contextmanager
def project(cluster: str, profile: str, job: str = "") -> Iterator[Path]:
    """A temporary project folder that the nodes can read. profile: the cluster's own; job: the text of job.toml, if any."""
    with tempfile.TemporaryDirectory(prefix="kit-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for kind in (".git", "clusters"):
            (folder / kind).mkdir()
        (folder / "clusters" / f"{cluster}.toml").write_text(profile)
        if job:
            (folder / "job.toml").write_text(job)
        yield folder
