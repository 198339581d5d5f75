"""Arrays that Slurm has accepted but the sweep's record lacks, because `kit sweep` was killed between sbatch and the manifests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from kit.errors import RunError, SlurmError
from kit.hosts import submission
from kit.hosts.clusters import find_host
from kit.record import unmade_points
from kit.record.unmade_points import POINTS
from kit.slurm import client
from kit.sweeps.record import SentArray, SweepPaths, SweepRecord, note_jobs, read_sweep


def arrays(paths: SweepPaths, record: SweepRecord) -> list[int]:
    """The numbers of arrays that were written and have no job in the record."""
    known = {array.number for array in record.submitted}
    there = paths.arrays.iterdir() if paths.arrays.is_dir() else ()
    return sorted(int(one.name) for one in there if one.name.isdecimal() and int(one.name) not in known)


def noted(points: Iterable[Path]) -> bool:
    """Record Slurm's jobs for the sweeps of these run folders, which have no job. Return whether any were found."""
    recorded = False
    for folder in {point.parent.parent for point in points if point.parent.name == POINTS}:
        # A folder that is not a sweep's, or cannot be read, is reported elsewhere.
        with contextlib.suppress(RunError):
            record = read_sweep(folder)
            if arrays(SweepPaths(folder), record):
                recorded = recovered(folder, record) is not record or recorded
    return recorded


def recovered(folder: Path, record: SweepRecord) -> SweepRecord:
    """The record with the lost arrays that Slurm has, identified by their scripts and recorded as by `kit sweep`."""
    if not find_host(record.cluster).is_up():
        return record
    paths = SweepPaths(folder)
    try:
        known = client.scripts(env=find_host(record.cluster).env())
    except SlurmError:
        # Nothing is known of the arrays now; a later command asks again.
        return record
    scripts = {str(Path(name).resolve()): number for name, number in known.items()}
    sent_arrays = []
    for number in arrays(paths, record):
        script = paths.arrays / str(number) / "batch.sh"
        job_id = scripts.get(str(script.resolve()))
        if job_id is not None:
            argv = ("sbatch", "--parsable", str(script))
            sent_arrays.append(SentArray(number=number, job_id=job_id, members=_members(script.parent), argv=argv))
            submission.confirmed(SweepPaths.submission(script.parent))
    if not sent_arrays:
        return record
    numbers = [array.number for array in sent_arrays]
    others = [array for array in record.arrays if array.number not in numbers]
    arrays_now = sorted((*others, *sent_arrays), key=lambda array: array.number)
    record = record.model_copy(update={"arrays": tuple(arrays_now)})
    note_jobs(record, numbers, folder)
    return record


def _members(array: Path) -> tuple[int, ...]:
    """The points of an array's tasks, in order: each task has a line in a list, or a link to its point's folder."""
    listed = unmade_points.lines(str(array))
    if listed:
        return tuple(int(index) for index, _ in listed)
    tasks = sorted(int(one.name) for one in array.iterdir() if one.name.isdecimal())
    return tuple(int((array / str(task)).readlink().name.rpartition(".")[2]) for task in tasks)
