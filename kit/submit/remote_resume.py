"""`kit resume` over ssh: sends the run's record and its secrets again, and submits the run's own scripts on the cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kit.config import load_model
from kit.files import untrusted_files
from kit.hosts import pair_relay, remote_images, remote_send
from kit.hosts.remote_clusters import RemoteCluster
from kit.hosts.remote_send import Errand
from kit.hosts.status import Status
from kit.images import image_lock
from kit.record import secret
from kit.record.manifest import Manifest
from kit.schema.job import Job
from kit.schema.run_paths import RunPaths
from kit.slurm import client


def resume(status: Status, record: Manifest, cluster: RemoteCluster, *, inherited: Mapping[str, str]) -> Manifest:
    """Submit the run again, exactly once, even if the connection breaks. LockError if neither the cluster nor this machine has its
    image.

    inherited: this machine's environment variables. The job gets those that it names.
    """
    paths = RunPaths(status.run_dir)
    cluster.fetch(status.run_dir, accounting_too=False)
    job, origin = load_model(paths.job, Job), Path(record.job_file)
    remote_images.require_all(cluster, [image_lock.read(path) for path in sorted(paths.locks.glob("*.lock"))])
    earlier = (*record.earlier_job_ids, *([record.job_id] if record.job_id is not None else []))
    again = record.model_copy(update={"job_id": None, "earlier_job_ids": earlier})
    number = len(earlier)
    name = f"state/again-{number}.json"
    values = secret.gather(job, job_dir=origin.parent, job_file=record.job_file)
    if record.partner:
        values[secret.RELAY_TOKEN] = pair_relay.token_for(record.partner)
    with tempfile.TemporaryDirectory(prefix="kit-run-") as folder:
        secret.write(Path(folder), values)
        (Path(folder) / "state").mkdir()
        again.write(Path(folder) / name, durable=False)
        content = remote_send.packed(Path(folder))
    errand = Errand(
        folder=cluster.mirror.name_of(status.run_dir),
        kind="again",
        argv=record.argv,
        right=f"state/submitting-{number}",
        again=name,
        old=record.job_id or 0,
    )
    errand = replace(errand, argv=remote_send.with_key(errand, untrusted_files.read_text(paths.batch)))
    wanted = {name: value for name, value in inherited.items() if client.inherits(job.inherit, name)}
    job_id = remote_send.until_known(cluster, errand, content, env=wanted)
    again = again.model_copy(update={"job_id": job_id})
    with cluster.mirror.changing():
        again.write(paths.manifest, durable=False)
    cluster.asked = None
    # It takes its token from the file of secrets that came with the run.
    pair_relay.start_again(status.run_dir, job, env={})
    return again
