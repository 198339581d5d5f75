"""`kit resume`: submits an ended run again, in its own folder, so that its program finds its checkpoints.

If the jobs of a training over two clusters still run but their relay died, it restarts the relay.
"""

from __future__ import annotations

import os
from pathlib import Path

from kit.config import load_model
from kit.errors import RunError
from kit.hosts import clusters, pair_relay, status
from kit.hosts.host import EndedRun, Queue
from kit.hosts.status import Status
from kit.planning import site_shell
from kit.record import secret
from kit.record.manifest import Manifest
from kit.schema.job import Job
from kit.schema.run_paths import RunPaths


def resume(run: Status) -> Manifest:
    """Submit the same scripts again. Logs are appended, KIT_RESTART_COUNT increases, and the manifest gets the new job id.

    RunError if the job is still in Slurm's queue, or if the run is a point of a sweep; LockError if its image is
    missing or truncated.
    """
    paths, record = RunPaths(run.run_dir), run.manifest
    if run.active:
        raise RunError(
            f"run {record.run_id} is {run.state}: it has not ended", hint=f"'kit cancel {record.run_id}' ends it"
        )
    if run.state == status.UNKNOWN and paths.submission.exists():
        raise RunError(f"run {record.run_id}: {run.reason}", hint=f"kit resume {record.run_id}, once Slurm answers")
    if record.imported is not None:
        problem = f"run {record.run_id} was imported: its scripts name another machine's folders, and it has no checkpoints here"
        raise RunError(problem, hint=f"kit rerun {record.run_id}")
    if record.array_task is not None:
        raise RunError(
            f"run {record.run_id} is a point of a sweep", hint="'kit sweep --retry' runs failed points again"
        )
    host = clusters.host_of_run(run.run_dir)
    host.fetch(run.run_dir, accounting_too=False)
    host.require_images_of(run.run_dir, record)
    job = load_model(paths.job, Job)
    env, relay_env = host.env(job.inherit), host.env()
    if host.shares_files and job.container.runtime == "bare" and (run.run_dir / "lib" / "site_shell.sh").exists():
        env |= site_shell.environment(os.environ)
        relay_env |= site_shell.environment(os.environ)
    origin = Path(record.job_file)
    values = secret.gather(job, job_dir=origin.parent, job_file=record.job_file)
    if record.partner:
        values[secret.RELAY_TOKEN] = pair_relay.token_for(record.partner)
    return host.submit_again(
        EndedRun(
            run_dir=run.run_dir,
            record=record,
            secrets=values,
            env=env,
            start_relay=lambda: pair_relay.start_again(run.run_dir, job, env=relay_env),
        )
    )


def restart_relay(run: Status, *, queue: Queue) -> str | None:
    """Restart the relay of a training over two clusters, if it died while the job of its run is pending or running.

    run: the run of either cluster. Returns the name of the run whose relay was started;
    None if no relay had died.
    """
    other = pair_relay.folder_of(run.facts.partner) if run.active and run.facts.partner else None
    if other is None:
        return None
    clusters.fetch(run.run_dir)
    first = pair_relay.first_of(run.run_dir, other)
    if first is None or pair_relay.seen_from(run.run_dir, other) not in pair_relay.DOWN:
        return None
    (owns,) = status.read_statuses([first], queue=queue)
    if not owns.active:
        return None
    env = clusters.find_host(owns.facts.cluster).env()
    pair_relay.start_again(first, load_model(RunPaths(first).job, Job), env=env)
    return first.name
