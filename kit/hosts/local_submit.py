"""Submits on this machine. A run folder is complete before it has its name, and a note of the submit is on disk before sbatch."""

from __future__ import annotations

from kit.errors import UnconfirmedError
from kit.files import hold_signals, untrusted_files
from kit.hosts import link_py_spy, output_folders, submission, whole_folder
from kit.hosts.host import EndedRun, NewRun
from kit.record import secret
from kit.record.manifest import Manifest
from kit.schema.run_paths import RunPaths


def make_folder(run: NewRun) -> RunPaths:
    """Make a run folder. RunError when it exists or the disk refuses."""
    with whole_folder.make_whole(run.run_dir) as partial:
        run.fill(partial)
        link_py_spy.link(partial, run.run_dir.parent)
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
            record = record.model_copy(update={"job_id": job_id, "links": run.send_links(job_id)})
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
