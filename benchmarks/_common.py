"""Shared parts of the benchmarks: a goal with its bound, the table of goals, and a project to run in."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


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

    def __str__(self) -> str:
        """The figure's row of the table."""
        bound, met = "", ""
        if self.bound is not None:
            bound = f"{'>=' if self.at_least else '<='} {self.bound:g}"
            met = "yes" if self.met else "NO"
        return f"| {self.name} | {self.value:.3f} {self.unit} | {bound} | {met} |"


def report(goals: Sequence[Goal]) -> int:
    """Print the table. Returns 1 when a goal is missed."""
    print("| what | measured | bound | met |\n|---|---|---|---|")
    for goal in goals:
        print(goal)
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
