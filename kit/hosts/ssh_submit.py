"""Submits to a cluster over ssh: sends the missing content, then the run folder, and one program on the cluster submits it.

The program receives the whole run before it acts, and it continues if the connection ends. So after a broken connection there is
one job or none. The next request finds out which, by the run folder and by the key in the job's comment.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from kit.errors import JobRefusedError
from kit.files import untrusted_files
from kit.hosts import remote_images, remote_send, remote_snapshots
from kit.hosts.host import EndedRun, Inputs, NewArrays, NewRun
from kit.hosts.login_node import LoginNode
from kit.hosts.remote_send import Errand
from kit.images import image_lock
from kit.record import index, secret
from kit.record.manifest import Manifest
from kit.record.unmade_points import POINTS
from kit.schema.run_paths import RunPaths
from kit.slurm import client
from kit.ssh.run_folder_mirror import ClusterAnswer


def send_inputs(host: LoginNode, inputs: Inputs) -> None:
    """Send the snapshot and the images; one request if the cluster has all of it."""
    locks = [image.lock for image in inputs.images]
    tree, source = inputs.code or (None, None)
    words = {"TREE": tree.hash if tree else "", "ARGV": remote_images.wanted(locks)}
    reply = host.connection.ask("have", {**host.folders, **words})
    if tree and source and not reply.text("tree").strip():
        remote_snapshots.send(host, tree, source)
    remote_images.require_all(host, locks, reply)


def require_images_of(host: LoginNode, run_dir: Path) -> None:
    """Make sure that the cluster has the images of a run, whose locks the run has."""
    paths = RunPaths(run_dir)
    remote_images.require_all(host, [image_lock.read_lock(path) for path in sorted(paths.locks.glob("*.lock"))])


def place(host: LoginNode, run: NewRun, *, submitted: bool) -> Manifest:
    """Make the run folder on the cluster, and submit it if `submitted`; return its manifest with the job.

    JobRefusedError if sbatch refuses it; then nothing of it is left.
    """
    run_id = run.run_dir.name
    with tempfile.TemporaryDirectory(prefix="kit-run-") as folder_here:
        run.fill(Path(folder_here))
        content = remote_send.packed(Path(folder_here))
    errand = Errand(folder=run_id, kind="place")
    if submitted:
        errand = remote_send.run_errand(run_id, run.argv, run.script, links=run.links)
    jobs = remote_send.until_known(host, errand, content, env=dict(run.env))
    record = run.record.model_copy(update={"job_id": jobs[0], "links": jobs[1:]} if jobs else {})
    with host.mirror.changing():
        # A command that follows at once then knows the run.
        here = host.mirror.runs / run_id
        here.mkdir(exist_ok=True)
        record.write(RunPaths(here).manifest, durable=False)
    return record


def submit_arrays(host: LoginNode, sweep: NewArrays) -> dict[int, int]:
    """Make or complete the sweep's folder on the cluster, and submit each array there, exactly once; array number -> job.

    JobRefusedError if sbatch refuses one: those before it are cancelled, and nothing is left of a new sweep.
    """
    name = sweep.folder.name
    with tempfile.TemporaryDirectory(prefix="kit-sweep-") as folder_here:
        sweep.fill(Path(folder_here))
        content = remote_send.packed(Path(folder_here))
    remote_send.until_known(host, Errand(folder=name, kind="over" if sweep.again else "place"), content)
    jobs: dict[int, int] = {}
    try:
        for array in sweep.arrays:
            errand = remote_send.array_errand(name, array.number, array.argv)
            (jobs[array.number],) = remote_send.until_known(host, errand, None, env=dict(sweep.env))
    except JobRefusedError:
        client.cancel_each([*jobs.values()], env=sweep.env)
        if not sweep.again:
            remote_send.remove(host, name)
        raise
    return jobs


def submit_again(host: LoginNode, run: EndedRun) -> Manifest:
    """Send the run's record and its secrets again, and submit the run's own scripts on the cluster, exactly once."""
    paths = RunPaths(run.run_dir)
    record = run.record.model_copy(update={"job_id": None, "earlier_job_ids": run.earlier})
    number = len(run.earlier)
    name = f"state/again-{number}.json"
    with tempfile.TemporaryDirectory(prefix="kit-run-") as folder_here:
        secret.write(Path(folder_here), run.secrets)
        (Path(folder_here) / "state").mkdir()
        record.write(Path(folder_here) / name, durable=False)
        content = remote_send.packed(Path(folder_here))
    errand = Errand(
        folder=host.mirror.name_of(run.run_dir),
        kind="again",
        argv=record.argv,
        right=f"state/submitting-{number}",
        again=name,
        old=run.record.job_id or 0,
    )
    errand = replace(errand, argv=remote_send.with_key(errand, untrusted_files.read_text(paths.batch)))
    (job_id,) = remote_send.until_known(host, errand, content, env=dict(run.env))
    record = record.model_copy(update={"job_id": job_id})
    with host.mirror.changing():
        record.write(paths.manifest, durable=False)
    # The relay takes its token from the file of secrets that came with the run.
    run.start_relay()
    return record


def settle(host: LoginNode, asked: ClusterAnswer) -> None:
    """Record the jobs of interrupted submits that Slurm had accepted, by their batch scripts. asked: the host's last answer."""
    runs = asked.there.runs
    unknown = [path for path, one in index.runs(host.mirror.runs) if one.slurm_id is None and not one.problem]
    cut = {path.name for path in unknown if f"{runs}/{path.name}/batch.sh" in asked.keys}
    sweeps = {path.parent.parent.name for path in unknown if path.parent.name == POINTS}
    for script in asked.keys if sweeps else ():
        folder, _, name = script.removeprefix(f"{runs}/").partition("/arrays/")
        if folder in sweeps and name.partition("/")[0].isdecimal():
            cut.add(f"{folder}/{name.partition('/')[0]}")
    for name in sorted(cut):
        folder, _, array = name.partition("/")
        script = f"{runs}/{folder}/arrays/{array}/batch.sh" if array else f"{runs}/{folder}/batch.sh"
        argv = ("sbatch", "--parsable", script)
        errand = remote_send.array_errand(folder, int(array), argv) if array else remote_send.run_errand(folder, argv)
        remote_send.ask(host, errand)
    if cut:
        host.mirror.refresh(host.connection, host.rules)
