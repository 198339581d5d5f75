"""`kit resume`: submits an ended run again, in its own folder, so that its program finds its checkpoints.

If the jobs of a training over two clusters still run but their relay died, it restarts the relay.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

from kit.config import load_model
from kit.errors import RunError, UnconfirmedError
from kit.files import hold_signals, untrusted_files
from kit.hosts import pair_relay, remote_clusters, status, submission
from kit.hosts.status import Status
from kit.images import check_against_lock
from kit.images.squash import sqshfile
from kit.planning import site_shell
from kit.record import secret
from kit.record.manifest import Manifest
from kit.schema.job import Job
from kit.schema.run_paths import RunPaths
from kit.slurm import client
from kit.submit import output_folders


def resume(one: Status, *, env: dict[str, str]) -> Manifest:
    """Submit the same scripts again. Logs are appended, KIT_RESTART_COUNT increases, and the manifest gets the new job id.

    RunError if the job is still in Slurm's queue, or if the run is a point of a sweep; LockError if its image is
    missing or truncated.
    """
    paths, record = RunPaths(one.run_dir), one.manifest
    if one.active:
        raise RunError(
            f"run {record.run_id} is {one.state}: it has not ended", hint=f"'kit cancel {record.run_id}' ends it"
        )
    if one.state == status.UNKNOWN and paths.submission.exists():
        raise RunError(f"run {record.run_id}: {one.reason}", hint=f"kit resume {record.run_id}, once Slurm answers")
    if record.imported is not None:
        problem = f"run {record.run_id} was imported: its scripts name another machine's folders, and it has no checkpoints here"
        raise RunError(problem, hint=f"kit rerun {record.run_id}")
    if record.array_task is not None:
        raise RunError(
            f"run {record.run_id} is a point of a sweep", hint="'kit sweep --retry' runs failed points again"
        )
    remote = remote_clusters.holding(one.run_dir)
    if remote:
        from kit.submit import remote_resume

        return remote_resume.resume(one, record, remote, inherited=os.environ)
    if record.image.startswith("/"):
        _require_image(record)
    job = load_model(paths.job, Job)
    if job.container.runtime == "bare" and (one.run_dir / "lib" / "site_shell.sh").exists():
        env = env | site_shell.environment(os.environ)
    origin = Path(record.job_file)
    values = secret.gather(job, job_dir=origin.parent, job_file=record.job_file)
    if record.partner:
        values[secret.RELAY_TOKEN] = pair_relay.token_for(record.partner)
    secret.remove(one.run_dir)
    secret.write(one.run_dir, values)
    earlier = (*record.earlier_job_ids, *([record.job_id] if record.job_id is not None else []))
    try:
        pair_relay.start_again(one.run_dir, job, env=client.environment(env))
        # When Slurm has accepted a job, its number is always recorded, even if the user interrupts.
        with hold_signals.uninterrupted(), output_folders.folders([untrusted_files.read_text(paths.batch)]):
            job_id = submission.submit(
                record.argv,
                env=client.environment(env, inherit=job.inherit),
                note=paths.submission,
                earlier=(*earlier, *record.links),
            )
            record = record.model_copy(update={"job_id": job_id, "earlier_job_ids": earlier})
            record.write(paths.manifest)
            paths.cancelled.unlink(missing_ok=True)
            submission.confirmed(paths.submission)
    except BaseException as error:
        # Slurm may have the job, which needs them.
        if record.job_id in {None, *earlier} and not isinstance(error, UnconfirmedError):
            submission.confirmed(paths.submission)
            secret.remove(one.run_dir)
        raise
    return record


def restart_relay(one: Status, *, queue: status.Queue, env: Callable[[str], dict[str, str]]) -> str | None:
    """Restart the relay of a training over two clusters, if it died while the job of its run is pending or running.

    one: the run of either cluster. env: the variables for Slurm, by cluster. Returns the name of the run whose relay was started;
    None if no relay had died.
    """
    other = pair_relay.folder_of(one.facts.partner) if one.active and one.facts.partner else None
    if other is None:
        return None
    remote_clusters.fetch(one.run_dir)
    first = pair_relay.first_of(one.run_dir, other)
    if first is None or pair_relay.seen_from(one.run_dir, other) not in pair_relay.DOWN:
        return None
    (owns,) = status.of([first], queue=queue)
    if not owns.active:
        return None
    pair_relay.start_again(first, load_model(RunPaths(first).job, Job), env=client.environment(env(owns.facts.cluster)))
    return first.name


def _require_image(record: Manifest) -> None:
    store = shlex.quote(str(Path(record.image).parent.parent))
    hint = f"run 'kit build-image {record.image_name} --store {store}'"
    sqshfile.check(Path(record.image), hint=hint)
    sha256 = record.image_digest.removeprefix("sha256:")
    check_against_lock.require_digest(Path(record.image), sha256, what=f"image {record.image_name}", hint=hint)
