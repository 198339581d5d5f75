"""bisect.json: the changes, and the results of each state so far. It is written atomically before and after every step."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from kit.bisection.changes import Change
from kit.bisection.judge import Criterion
from kit.bisection.search import Verdict
from kit.errors import RunError
from kit.files import atomic_write
from kit.record import manifest
from kit.schema.schema_base import Model

FOLDER = ".bisections"
_FILE = "bisect.json"


class Trial(Model):
    """A state that was tried. run_dir: empty if it is not planned yet, or cannot be."""

    state: int = Field(description="How many of the changes it has, the first ones.")
    round: int
    run_dir: str
    verdict: Verdict | None = Field(description="null: its run has not ended.")
    said: str = ""


class BisectionRecord(Model):
    """One bisection. good, bad: the run folders."""

    schema_version: Literal[1] = 1
    good: str
    bad: str
    by: Criterion
    changes: tuple[Change, ...]
    left_out: tuple[str, ...] = Field(description="What differs and cannot be tried, in words.")
    points: tuple[Trial, ...] = ()

    @property
    def verdicts(self) -> dict[int, Verdict]:
        """State -> verdict, for the states with a verdict."""
        return {one.state: one.verdict for one in self.points if one.verdict is not None}

    @property
    def rounds(self) -> int:
        """The number of rounds so far."""
        return max((one.round for one in self.points), default=0)

    def find_trial(self, state: int) -> Trial:
        """The trial of a state."""
        return next(one for one in self.points if one.state == state)

    def with_point(self, point: Trial) -> BisectionRecord:
        """A copy with one trial added; it replaces an earlier trial of its state."""
        rest = tuple(one for one in self.points if one.state != point.state)
        return self.model_copy(update={"points": (*rest, point)})

    def write(self, folder: Path) -> None:
        """Write atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write.write(folder / _FILE, self.model_dump_json(indent=1) + "\n")


def read_bisection(folder: Path) -> BisectionRecord | None:
    """The record in a folder; None if there is none. RunError if it cannot be read."""
    path = folder / _FILE
    if not path.exists():
        return None
    return manifest.load(BisectionRecord, path, absent=lambda: RunError(f"{path}: this file was removed"))
