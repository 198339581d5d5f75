"""sweep.json: the points of a sweep and its submitted arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal

from kit.errors import RunError
from kit.files import atomic_write
from kit.record import manifest, unmade_points
from kit.record.unmade_points import MADE, POINTS, ArrayPaths
from kit.schema.run_paths import RunPaths
from kit.schema.schema_base import Model
from kit.schema.sweep import Sweep, Value
from kit.sweeps.points.expand import Point

# The job number of an array that is not submitted yet.
NO_JOB = 0


class SentArray(Model):
    """One submission: task n of Slurm job `job_id` runs the nth of `members`."""

    number: int
    job_id: int
    members: tuple[int, ...]
    argv: tuple[str, ...]


class RecordedPoint(Model):
    """A point of the sweep, with the number that names its folder."""

    index: int
    name: str
    values: Mapping[str, Value]

    def point(self) -> Point:
        """The point in the form of `expand`."""
        return Point(index=self.index, name=self.name, values=self.values)


class SweepRecord(Model):
    """One sweep. seed: of its points if neither job nor sweep sets one. search: the table of an adaptive sweep."""

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

    @property
    def submitted(self) -> tuple[SentArray, ...]:
        """The arrays that have a job."""
        return tuple(array for array in self.arrays if array.job_id != NO_JOB)

    def with_jobs(self, jobs: Mapping[int, int]) -> SweepRecord:
        """The record with these jobs, by the arrays' numbers."""
        arrays = (a.model_copy(update={"job_id": jobs.get(a.number, a.job_id)}) for a in self.arrays)
        return self.model_copy(update={"arrays": tuple(arrays)})

    def write(self, paths: SweepPaths) -> None:
        """Write atomically."""
        atomic_write.write(paths.record, self.model_dump_json(indent=1) + "\n")


class SweepPaths:
    """File names in one sweep's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def record(self) -> Path:
        """The sweep's record. A folder with this file is a sweep."""
        return self.root / "sweep.json"

    @property
    def points(self) -> Path:
        """The folder with the points' run folders."""
        return self.root / POINTS

    def point(self, index: int) -> Path:
        """The run folder of one point. Its name is the run's id, which identifies the run everywhere."""
        return self.points / self.name(index)

    def name(self, index: int) -> str:
        """The run's id of one point."""
        return f"{self.root.name}.{index}"

    @property
    def templates(self) -> Path:
        """The folder with the templates of run folders that are made when their points start."""
        return self.root / "templates"

    @property
    def arrays(self) -> Path:
        """The folder with a folder for each array: its script, and the list of its tasks' points, or a link to each point's run
        folder.
        """
        return self.root / "arrays"

    @staticmethod
    def submission(array: Path) -> Path:
        """The note of an array's submission, in its folder; removed once the array's number is recorded."""
        return array / "submission.json"


def read_sweep(folder: Path) -> SweepRecord:
    """The record of a sweep; RunError if there is none, or if another version of the kit made it."""
    path = SweepPaths(folder).record
    return manifest.load(SweepRecord, path, absent=lambda: _absent(folder))


def note_jobs(record: SweepRecord, numbers: Collection[int], folder: Path) -> None:
    """Write the record, and the jobs of the arrays with these numbers into the manifest of each point that has a run folder."""
    paths = SweepPaths(folder)
    record.write(paths)
    for array in record.arrays:
        if array.number not in numbers:
            continue
        own = paths.arrays / str(array.number)
        listed = unmade_points.lines(str(own))
        if listed:
            atomic_write.write(Path(ArrayPaths(own).job), f"{array.job_id}\n")
        for task, index in enumerate(array.members):
            if listed and listed[task][1] != MADE:
                continue
            path = RunPaths(paths.point(index)).manifest
            facts = {"job_id": array.job_id, "array_task": task, "argv": array.argv}
            manifest.read_manifest(path).model_copy(update=facts).write(path, durable=False)


def _absent(folder: Path) -> RunError:
    return RunError(f"{folder}: no sweep.json: not a sweep", hint="'kit sweep' makes one")
