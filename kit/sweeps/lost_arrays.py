"""Arrays that Slurm has accepted but the sweep's record lacks, because `kit sweep` was killed between sbatch and the manifests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from kit.errors import RunError, SlurmError
from kit.hosts import submission
from kit.hosts.clusters import find_host
from kit.record import foreign_runs
from kit.record.unmade_points import POINTS
from kit.slurm import client
from kit.sweeps.record import NO_JOB, SweepPaths, SweepRecord, note_jobs, read_sweep


def written_numbers(paths: SweepPaths) -> list[int]:
    """The numbers of the arrays that have a folder, whether they were submitted or not."""
    folders = paths.arrays.iterdir() if paths.arrays.is_dir() else ()
    return sorted(int(folder.name) for folder in folders if folder.name.isdecimal())


def has_lost_arrays(record: SweepRecord) -> bool:
    """Whether the record has an array without a job. Its job is recorded as soon as sbatch answers."""
    return len(record.submitted) < len(record.arrays)


def noted(points: Iterable[Path]) -> bool:
    """Record Slurm's jobs for the sweeps of these run folders, which have no job. Return whether any were found."""
    recorded = False
    for folder in {point.parent.parent for point in points if point.parent.name == POINTS}:
        # A folder that is not a sweep's, or cannot be read, is reported elsewhere.
        with contextlib.suppress(RunError):
            record = read_sweep(folder)
            if has_lost_arrays(record):
                recorded = recovered(folder, record) is not record or recorded
    return recorded


def recovered(folder: Path, record: SweepRecord) -> SweepRecord:
    """The record with the lost arrays that Slurm has, identified by their scripts and recorded as by `kit sweep`.

    Another user's sweep remains as it is: its arrays and points may be links to this user's.
    """
    if foreign_runs.is_foreign(folder) or not find_host(record.cluster).is_up():
        return record
    paths = SweepPaths(folder)
    try:
        known = client.scripts(env=find_host(record.cluster).env())
    except SlurmError:
        # Nothing is known of the arrays now; a later command asks again.
        return record
    scripts = {str(Path(name).resolve()): number for name, number in known.items()}
    jobs = {}
    for array in record.arrays:
        folder_of_array = paths.arrays / str(array.number)
        job_id = scripts.get(str((folder_of_array / "batch.sh").resolve()))
        if array.job_id == NO_JOB and job_id is not None:
            jobs[array.number] = job_id
            submission.confirmed(SweepPaths.submission(folder_of_array))
    if not jobs:
        return record
    record = record.with_jobs(jobs)
    note_jobs(record, jobs, folder)
    return record
