"""Submits on this machine. A run folder is complete before it has its name, and a note of the submit is on disk before sbatch."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from kit.errors import UnconfirmedError
from kit.files import hold_signals, untrusted_files
from kit.hosts import chain_links, output_folders, submission, whole_folder
from kit.hosts.host import EndedRun, NewArrays, NewRun
from kit.record import secret
from kit.record.manifest import Manifest
from kit.schema.run_paths import RunPaths
from kit.slurm import client

# Next to the runs: py-spy's binary, which they share.
_FOLDER = ".tools"


def make_folder(run: NewRun) -> RunPaths:
    """Make a run folder. RunError when it exists or the disk refuses."""
    with whole_folder.make_whole(run.run_dir) as partial:
        run.fill(partial)
        _link_py_spy(partial, run.run_dir.parent)
    return RunPaths(run.run_dir)


def submit(run: NewRun) -> Manifest:
    """Make a run folder and submit it. Nothing is left behind if sbatch refuses.

    UnconfirmedError if it is not known whether Slurm has taken the job; then the run folder stays.
    """
    record, paths = run.record, make_folder(run)
    try:
        # When Slurm has accepted a job, its number is always recorded in the folder, even if the user interrupts.
        with hold_signals.uninterrupted(), output_folders.folders([run.script]):
            job_id = submission.submit(run.argv, env=run.env, note=paths.submission)
            links = chain_links.submit(run.run_dir, job_id, run.links, env=run.env) if run.links else ()
            record = record.model_copy(update={"job_id": job_id, "links": links})
            record.write(paths.manifest)
            submission.confirmed(paths.submission)
    except UnconfirmedError:
        # Slurm may have the job. The next command that looks at the run finds out, by the mark.
        raise
    except BaseException:
        if record.job_id is None:
            whole_folder.remove(run.run_dir)
        raise
    return record


def submit_arrays(sweep: NewArrays) -> dict[int, int]:
    """Write a sweep's files and submit its arrays; array number -> job. If one is refused, those before it are cancelled.

    UnconfirmedError if it is not known whether Slurm has taken an array; the sweep stays, and the array is found by its script.
    """
    jobs: dict[int, int] = {}
    if not sweep.again:
        with whole_folder.make_whole(sweep.folder) as partial:
            _fill(sweep, partial)
    try:
        if sweep.again:
            _fill(sweep, sweep.folder)
        with output_folders.folders(array.text for array in sweep.arrays):
            for array in sweep.arrays:
                # A Ctrl-C is delayed until the array is in the list, and then cancels it with the others.
                with hold_signals.uninterrupted():
                    jobs[array.number] = submission.submit(array.argv, env=sweep.env, note=array.note)
                    submission.confirmed(array.note)
    except UnconfirmedError:
        sweep.note(jobs)
        raise
    except BaseException:
        client.cancel_each([*jobs.values()], env=sweep.env)
        sweep.undo()
        raise
    sweep.note(jobs)
    return jobs


def _fill(sweep: NewArrays, folder: Path) -> None:
    for run_dir in sweep.fill(folder):
        _link_py_spy(run_dir, sweep.folder.parent)


def submit_again(run: EndedRun) -> Manifest:
    """Submit a run's scripts again. The relay must run before the job does."""
    paths, record = RunPaths(run.run_dir), run.record
    secret.remove(run.run_dir)
    secret.write(run.run_dir, run.secrets)
    try:
        run.start_relay()
        # When Slurm has accepted a job, its number is always recorded, even if the user interrupts.
        with hold_signals.uninterrupted(), output_folders.folders([untrusted_files.read_text(paths.batch)]):
            known = (*run.earlier, *record.links)
            job_id = submission.submit(record.argv, env=run.env, note=paths.submission, earlier=known)
            record = record.model_copy(update={"job_id": job_id, "earlier_job_ids": run.earlier})
            record.write(paths.manifest)
            paths.cancelled.unlink(missing_ok=True)
            submission.confirmed(paths.submission)
    except BaseException as error:
        # Slurm may have the job, which needs them.
        if record.job_id in {None, *run.earlier} and not isinstance(error, UnconfirmedError):
            submission.confirmed(paths.submission)
            secret.remove(run.run_dir)
        raise
    return record


def _link_py_spy(run_dir: Path, runs_dir: Path) -> None:
    """Link py-spy as `bin/py-spy` in the run folder, where evidence.sh runs it outside the container.

    It is a static binary, installed with the kit (extra `stacks`). Do nothing if it is not installed.
    """
    try:
        py_spy = _kept(runs_dir)
    except OSError:
        # Evidence of stacks can be gathered in other ways.
        return
    if py_spy is not None:
        path = RunPaths(run_dir).bin / "py-spy"
        path.unlink(missing_ok=True)
        path.symlink_to(py_spy)


def _kept(runs_dir: Path) -> Path | None:
    """The copy that all runs of this user share; created if it is missing. None if another user could have written it."""
    source = Path(sys.executable).parent / "py-spy"
    try:
        version = metadata.version("py-spy")
    except metadata.PackageNotFoundError:
        return None
    if not source.is_file():
        return None
    folder = runs_dir.absolute() / f"{_FOLDER}-{os.geteuid()}"
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    kept = folder / f"py-spy-{version}"
    if not _mine(folder):
        return None
    if not kept.exists():
        descriptor, name = tempfile.mkstemp(dir=folder, suffix=".partial")
        os.close(descriptor)
        shutil.copyfile(source, name)
        new = Path(name)
        new.chmod(0o555)
        new.replace(kept)
    return kept if _mine(kept) else None


def _mine(path: Path) -> bool:
    found = path.lstat()
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
