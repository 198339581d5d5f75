"""Arrays that Slurm took and the sweep's record does not know: `kit sweep` was killed between sbatch and the manifests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from kit.errors import RunError
from kit.runs import which_slurm
from kit.runs.index import POINTS
from kit.slurm import client
from kit.sweeps.record import SentArray, SweepPaths, SweepRecord, read


def arrays(paths: SweepPaths, record: SweepRecord) -> list[int]:
    """The numbers of arrays that were written and are in no record."""
    known = {array.number for array in record.arrays}
    there = paths.arrays.iterdir() if paths.arrays.is_dir() else ()
    return sorted(int(one.name) for one in there if one.name.isdecimal() and int(one.name) not in known)


def noted(points: Iterable[Path]) -> bool:
    """Note what Slurm has of the sweeps of these run folders, which have no job; whether anything was found."""
    found = False
    for folder in {point.parent.parent for point in points if point.parent.name == POINTS}:
        # What is not a sweep's, or cannot be read, has a reason of its own.
        with contextlib.suppress(RunError):
            record = read(folder)
            if arrays(SweepPaths(folder), record):
                found = recovered(folder, record) is not record or found
    return found


def recovered(folder: Path, record: SweepRecord) -> SweepRecord:
    """The record with those of them that Slurm has, found by their own script, noted as `kit sweep` would have done."""
    if not which_slurm.is_up(record.cluster):
        return record
    paths = SweepPaths(folder)
    scripts = {
        str(Path(name).resolve()): number
        for name, number in client.scripts(env=which_slurm.env_of(record.cluster)).items()
    }
    found = []
    for number in arrays(paths, record):
        script = paths.arrays / str(number) / "batch.sh"
        job_id = scripts.get(str(script.resolve()))
        if job_id is not None:
            argv = ("sbatch", "--parsable", str(script))
            found.append(SentArray(number=number, job_id=job_id, members=_members(script.parent), argv=argv))
    if not found:
        return record
    # Only here: it brings all that plans a job.
    from kit.sweeps.submit import note

    record = record.model_copy(update={"arrays": (*record.arrays, *found)})
    note(record, found, folder)
    return record


def _members(array: Path) -> tuple[int, ...]:
    """The points of its tasks, in order: each task has a link to its point's folder."""
    tasks = sorted(int(one.name) for one in array.iterdir() if one.name.isdecimal())
    return tuple(int((array / str(task)).readlink().name.rpartition(".")[2]) for task in tasks)
