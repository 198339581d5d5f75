"""sweep.json: the points of a sweep and the arrays that they were sent in."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal

from kit.errors import RunError
from kit.runs import atomic_write, index, manifest
from kit.spec.schema_base import Model
from kit.spec.sweep import Sweep, Value
from kit.sweeps.expand import Point


class SentArray(Model):
    """One submission: task n of Slurm job `job_id` is the nth of `members`."""

    number: int
    job_id: int
    members: tuple[int, ...]
    argv: tuple[str, ...]


class RecordedPoint(Model):
    """A point of the sweep under the number that names its folder."""

    index: int
    name: str
    values: Mapping[str, Value]

    def point(self) -> Point:
        """As `expand` makes it."""
        return Point(index=self.index, name=self.name, values=self.values)


class SweepRecord(Model):
    """One sweep. seed: what its points get where neither job nor sweep names one. search: the table of an adaptive one."""

    schema_version: Literal[1] = 1
    sweep_id: str
    job_name: str
    job_file: str
    cluster: str
    seed: int
    submitted_at: datetime
    metric: str | None
    goal: Literal["min", "max"]
    points: tuple[RecordedPoint, ...]
    arrays: tuple[SentArray, ...]
    search: Sweep | None = None

    def write(self, paths: SweepPaths) -> None:
        """Write atomically."""
        atomic_write.write(paths.record, self.model_dump_json(indent=1) + "\n")


class SweepPaths:
    """File names under one sweep's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def record(self) -> Path:
        """The sweep's record; a folder that holds one is a sweep."""
        return self.root / "sweep.json"

    @property
    def points(self) -> Path:
        """A run folder for each point."""
        return self.root / index.POINTS

    def point(self, index: int) -> Path:
        """The run folder of one point. Its name is the run's id, so that it names the run everywhere."""
        return self.points / self.name(index)

    def name(self, index: int) -> str:
        """The run's id of one point."""
        return f"{self.root.name}.{index}"

    @property
    def arrays(self) -> Path:
        """A folder for each array: its script, and a link to a point's run folder for each task."""
        return self.root / "arrays"


def read(folder: Path) -> SweepRecord:
    """The record of a sweep; RunError when there is none or it is of another make."""
    path = SweepPaths(folder).record
    return manifest.load(SweepRecord, path, absent=lambda: _absent(folder))


def _absent(folder: Path) -> RunError:
    return RunError(f"{folder}: no sweep.json: not a sweep", hint="'kit sweep' makes one")
