"""Submits to a cluster over ssh: what it lacks is sent by content, then the run folder, and one program over there submits it.

The program has all of the run before it does anything, and does not end with the line. So a broken line leaves one job or none, and
the next question tells which: by the run folder, and by the key that the job carries.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kit.errors import ConfigError, Fault, JobRefusedError, RunError, SlurmError
from kit.remote import run_folder_mirror as mirrors
from kit.remote import shell_program
from kit.remote.answers import Reply
from kit.remote.connection import LineError
from kit.runs import folder, remote_images, remote_snapshots, workspace
from kit.runs.manifest import Manifest
from kit.runs.remote_clusters import RemoteCluster, refuse
from kit.spec.run_paths import RunPaths

if TYPE_CHECKING:
    from kit.config import Resolved
    from kit.planning.plan import Plan
    from kit.runs.submit import Prepared

# Pauses before a broken line is tried again, in seconds.
_AGAIN_S = (1.0, 3.0, 9.0)


@dataclass(frozen=True)
class _Packed:
    content: bytes
    sha256: str


def require_portable(resolved: Resolved) -> None:
    """ConfigError, with all that a job names of this machine, where it cannot be on a cluster over ssh."""
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
    """Send a planned run and submit it. JobRefusedError when sbatch does not take it: nothing of it is left then."""
    from kit.runs.submit import ask_slurm, record_of, secrets_of

    made = prepared.plan
    _send_what_it_lacks(prepared, cluster)
    ask_slurm(prepared)
    patch = workspace.patch(prepared.scan)
    record = record_of(prepared, patch=patch, now=now)
    with tempfile.TemporaryDirectory(prefix="kit-run-") as place:
        folder.fill(Path(place), made, record, secrets=secrets_of(prepared), durable=False, patch=patch)
        packed = _packed(Path(place))
    job_id = _until_known(cluster, made, packed, env=dict(prepared.env))
    record = record.model_copy(update={"job_id": job_id})
    with cluster.mirror.changing():
        # So that a command that follows at once knows the run.
        here = cluster.mirror.runs / made.run_id
        here.mkdir(exist_ok=True)
        record.write(RunPaths(here).manifest, durable=False)
    # What Slurm said before it had the job is no answer any more.
    cluster.asked = None
    return record


def settle(cluster: RemoteCluster, run_id: str) -> int | None:
    """What became of a submit whose line broke: its job's number, noted over there too; None without a run, or a job yet."""
    known = cluster.mirror.there()
    if known is None:
        return None
    script = f"{known.runs}/{run_id}/batch.sh"
    constants = _constants(cluster, run_id, _sbatch(("sbatch", "--parsable", script), run_id))
    reply = cluster.connection.ask("submit", {**constants, "SIZE": 0, "SHA": ""})
    return _number(reply) if reply.text("result") == "submitted" else None


def _until_known(cluster: RemoteCluster, made: Plan, packed: _Packed, *, env: dict[str, str]) -> int:
    """Submit; after a broken line ask what became of it, and go on from there."""
    constants = _constants(cluster, made.run_id, _sbatch(made.argv, made.run_id, made.text_of("batch.sh")))
    pauses, send = iter(_AGAIN_S), True
    while True:
        size, data = (len(packed.content), [packed.content]) if send else (0, [])
        try:
            reply = cluster.connection.ask(
                "submit", {**constants, "SIZE": size, "SHA": packed.sha256}, data=data, environment=env
            )
        except LineError as error:
            pause = next(pauses, None)
            if pause is None:
                problem = f"{error.message}\n  whether run {made.run_id} was submitted is not known yet"
                raise LineError(
                    problem, hint=f"kit status {made.run_id}, once the line is back: never two jobs come of it"
                ) from None
            print(
                f"kit: the line to {cluster.connection.host} broke; asking what became of the submit", file=sys.stderr
            )
            time.sleep(pause)
            send = False
            continue
        said = reply.text("result")
        if said in {"nothing", "cut"}:
            if not send or next(pauses, None) is not None:
                send = True
                continue
            raise LineError(f"cluster {cluster.name}: the run folder does not arrive whole", hint="submit again")
        return _job_of(reply, said, cluster, made)


def _job_of(reply: Reply, said: str, cluster: RemoteCluster, made: Plan) -> int:
    words = reply.texts.get("said", "")
    lines = "\n".join(f"  {line}" for line in (words or reply.stderr).splitlines()[-5:])
    if said == "submitted":
        return _number(reply)
    if said == "refused":
        raise JobRefusedError(
            f"sbatch refused the job:\n{lines}", hint="nothing was submitted; 'kit render' shows its header"
        )
    if said == "unknown":
        problem = f"cluster {cluster.name}: whether Slurm has taken run {made.run_id} is not known yet:\n{lines}"
        raise SlurmError(problem, hint=f"kit status {made.run_id} tells, once Slurm answers; never two jobs come of it")
    place = f"{cluster.connection.host}:{made.run_dir}"
    raise RunError(
        f"{place}: cannot be written:\n{lines}", hint="free some space there, or set paths.runs of the cluster"
    )


def _number(reply: Reply) -> int:
    return int(reply.texts["said"].split()[0])


def _constants(cluster: RemoteCluster, run_id: str, argv: tuple[str, ...]) -> dict[str, object]:
    return {**mirrors.folders(cluster.rules), "RUN": run_id, "KEY": _key(run_id), "ARGV": shell_program.Words(argv)}


def _key(run_id: str) -> str:
    """What the job's comment says, so that it is found again."""
    return f"kit:{run_id}"


def _sbatch(argv: tuple[str, ...], run_id: str, script: str = "") -> tuple[str, ...]:
    """With the key, unless the job has a comment of its own: its batch script's path is as good."""
    return argv if "--comment" in script else (*argv[:-1], f"--comment={_key(run_id)}", argv[-1])


def _packed(place: Path) -> _Packed:
    """A run folder as an archive. Secrets keep their mode from their first byte on."""
    sink = io.BytesIO()

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(fileobj=sink, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(place.iterdir()):
            archive.add(path, arcname=path.name, filter=plain)
    content = sink.getvalue()
    return _Packed(content, hashlib.sha256(content).hexdigest())


def _send_what_it_lacks(prepared: Prepared, cluster: RemoteCluster) -> None:
    """The snapshot and the images; one request when all of it is there."""
    made, scan = prepared.plan, prepared.scan
    locks = [pin.lock for pin in made.decisions.pins.distinct if pin.lock is not None]
    wanted = ("printf", "%s\\n", *(lock.sha256 for lock in locks)) if locks else ("true",)
    tree = scan.tree.hash if scan else ""
    ask = {**mirrors.folders(cluster.rules), "TREE": tree, "ARGV": shell_program.Words(wanted)}
    reply = cluster.connection.ask("have", ask)
    if scan and not reply.text("tree").strip():
        remote_snapshots.send(cluster, scan)
    there = {line.split()[0]: line.split()[1:] for line in reply.text("images").splitlines()}
    for lock in locks:
        remote_images.require(cluster, lock, there.get(lock.sha256, ["none"]))
