"""Submits to a cluster over ssh: sends the missing content, then the run folder, and one program on the cluster submits it.

The program receives the whole run before it acts, and it continues if the connection ends. So after a broken connection there is
one job or none. The next request finds out which, by the run folder and by the key in the job's comment.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kit.errors import ConfigError, Fault
from kit.hosts import remote_images, remote_send, remote_snapshots
from kit.hosts.remote_clusters import RemoteCluster, refuse
from kit.hosts.remote_send import Errand
from kit.record.manifest import Manifest
from kit.schema.run_paths import RunPaths
from kit.ssh import run_folder_mirror as mirrors
from kit.submit import folder, workspace

if TYPE_CHECKING:
    from kit.config import Resolved
    from kit.schema.image import ImageLock
    from kit.submit.prepare_run import Prepared


def require_portable(resolved: Resolved) -> None:
    """ConfigError, with all references of a job to this machine that do not work on a cluster over ssh."""
    assert resolved.cluster.ssh is not None
    job, file = resolved.job, resolved.job_file
    faults = []
    if not job.snapshot:
        problem = "the run would work in the job's folder, which is on this machine and not on the cluster"
        faults.append(Fault(file=file, key="snapshot", problem=problem, hint="snapshot = true"))
    for mount in resolved.mounts:
        if mount.source != "tmpfs" and not mount.source.startswith(("/", "~", "{home}", "{user}", "{data}", "{run}")):
            problem = (
                f"{mount.source!r} is in the job's folder on this machine, and a run over ssh has its snapshot alone"
            )
            faults.append(Fault(file=file, key="mounts", problem=problem, hint='source = "{home}/data"'))
    for key in ("output", "error"):
        value = getattr(job.slurm, key)
        if value and not value.startswith(("/", "~", "{home}", "{data}", "{run}")):
            problem = f"{value!r} is in the job's folder on this machine"
            faults.append(
                Fault(file=file, key=f"slurm.{key}", problem=problem, hint=f'{key} = "{{home}}/logs/%x-%j.log"')
            )
    if faults:
        raise ConfigError.of(*faults)
    for what, given in (("a chain", job.chain), ("a job of your own template", resolved.template)):
        if given is not None:
            refuse(resolved.cluster_name, what)


def submit(prepared: Prepared, cluster: RemoteCluster, *, now: datetime | None = None) -> Manifest:
    """Send the folder of a run that is ready, and submit it. JobRefusedError if sbatch refuses it; then nothing of it is left."""
    from kit.submit.submit import record_of

    earlier = prepared.earlier
    patch = workspace.patch(prepared.scan) or (earlier.patch() if earlier else "")
    record = record_of(prepared, patch=patch, now=now)
    if earlier:
        record = earlier.told(record)
    job_id = place(prepared, cluster, record, patch=patch, submitted=True)
    return record.model_copy(update={"job_id": job_id})


def settle(cluster: RemoteCluster, run_id: str) -> int | None:
    """The result of an interrupted submit: the job's number, recorded on the cluster too. None without a run or a job yet."""
    known = cluster.mirror.there()
    if known is None:
        return None
    folder, _, array = run_id.partition("/")
    if array:
        return remote_send.ask(cluster, array_errand(known.runs, folder, int(array)))
    return remote_send.ask(cluster, _errand(run_id, ("sbatch", "--parsable", f"{known.runs}/{run_id}/batch.sh")))


def array_errand(runs: str, sweep: str, number: int, options: Sequence[str] = ()) -> Errand:
    """The errand to submit one array of a sweep whose folder is on the cluster.

    runs: the cluster's folder of runs. options: more for sbatch.
    """
    script = f"arrays/{number}/batch.sh"
    made = Errand(
        folder=sweep,
        kind="array",
        argv=("sbatch", "--parsable", *options, f"{runs}/{sweep}/{script}"),
        script=script,
        right=f"arrays/{number}/submitting",
        again=str(number),
    )
    return replace(made, argv=remote_send.with_key(made, ""))


def _errand(run_id: str, argv: tuple[str, ...], text: str = "") -> Errand:
    made = Errand(folder=run_id, kind="run", argv=argv)
    return replace(made, argv=remote_send.with_key(made, text))


def place(prepared: Prepared, cluster: RemoteCluster, record: Manifest, *, patch: str, submitted: bool) -> int:
    """Make the run folder on the cluster, and submit it if `submitted`; return its job's number."""
    from kit.submit.submit import secrets_of

    made = prepared.plan
    with tempfile.TemporaryDirectory(prefix="kit-run-") as folder_here:
        folder.fill(Path(folder_here), made, record, secrets=secrets_of(prepared), durable=False, patch=patch)
        content = remote_send.packed(Path(folder_here))
    errand = _errand(made.run_id, made.argv, made.text_of("batch.sh"))
    if not submitted:
        errand = Errand(folder=made.run_id, kind="place")
    job_id = remote_send.until_known(cluster, errand, content, env=dict(prepared.env))
    with cluster.mirror.changing():
        # A command that follows at once then knows the run.
        here = cluster.mirror.runs / made.run_id
        here.mkdir(exist_ok=True)
        record.model_copy(update={"job_id": job_id or None}).write(RunPaths(here).manifest, durable=False)
    # Slurm's answer from before the submit is out of date.
    cluster.asked = None
    return job_id


def send_what_it_lacks(prepared: Prepared, cluster: RemoteCluster) -> None:
    """Send the snapshot and the images; one request if the cluster has all of it."""
    locks = [pin.lock for pin in prepared.plan.decisions.pins.distinct if pin.lock is not None]
    send_inputs(prepared, cluster, locks)


def send_inputs(prepared: Prepared, cluster: RemoteCluster, locks: Sequence[ImageLock]) -> None:
    """Send the run's snapshot and these images."""
    scan, earlier = prepared.scan, prepared.earlier
    tree = scan.tree if scan else earlier.code[0] if earlier and earlier.code else None
    words = {"TREE": tree.hash if tree else "", "ARGV": remote_images.wanted(locks)}
    reply = cluster.connection.ask("have", {**mirrors.folders(cluster.rules), **words})
    if tree and not reply.text("tree").strip():
        source = scan.folder if scan else earlier.folder if earlier else None
        assert source is not None
        remote_snapshots.send(cluster, tree, source)
    remote_images.require_all(cluster, locks, reply)
