"""`kit shell`: a shell in the job's container, on a node of a new allocation or of a running run."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from pathlib import Path

from kit import shell
from kit.errors import RunError
from kit.files import untrusted_files
from kit.hosts import remote_clusters
from kit.hosts.remote_clusters import RemoteCluster
from kit.hosts.status import Status
from kit.planning.plan import Plan
from kit.record import manifest, own_run, secret
from kit.record.run_facts import events
from kit.schema.run_paths import RunPaths
from kit.slurm import client
from kit.ssh import run_folder_mirror as mirrors
from kit.submit import folder, workspace
from kit.submit.prepare_run import Prepared
from kit.submit.submit import require_ready, secrets_of

# After a hang-up sh waits for the command to end, then removes the secrets. $0 is the run folder.
_AND_REMOVE = 'trap : HUP INT TERM; "$@"; code=$?; rm -f -- "$0/.secrets"; exit "$code"'


def allocate(prepared: Prepared) -> int:
    """Allocate the job's resources with salloc and open a shell in its container on the first node; return the shell's exit code.

    The nodes are checked first, as for a batch job; the exit code is 72 when a check fails.
    """
    require_ready(prepared)
    made, remote = prepared.plan, prepared.remote
    if remote:
        from kit.submit import remote_submit

        remote_submit.send_what_it_lacks(prepared, remote)
    record = manifest.of(
        made,
        job_file=prepared.job_file,
        user=getpass.getuser(),
        now=datetime.now(UTC),
        slurm_version=client.version(env=prepared.env),
        workspace=workspace.record(prepared.scan, prepared.resolved, patch=False),
    )
    record = record.model_copy(update={"interactive": True})
    argv = [*made.salloc_argv, *_checked(made)]
    if remote:
        remote_submit.place(prepared, remote, record, patch="", submitted=False)
        return _over_ssh(argv, prepared, remote)
    folder.create(made, record, secrets=secrets_of(prepared))
    try:
        return shell.call(argv, env=_with_terminal(prepared.env))
    finally:
        secret.remove(made.run_dir)


def _over_ssh(argv: list[str], prepared: Prepared, remote: RemoteCluster) -> int:
    """Open the shell in a copy of the job's folder on the cluster.

    Its secrets are removed when the shell or the connection ends.
    """
    made, snapshot = prepared.plan, prepared.site.snapshot
    constants = {**mirrors.folders(remote.rules), "RUN": made.run_id, "TREE": str(snapshot.folder) if snapshot else ""}
    remote.connection.ask("opened", constants).text("opened")
    return shell.call(
        remote.connection.terminal(["sh", "-c", _AND_REMOVE, str(made.run_dir), *argv], env=dict(prepared.env))
    )


def _checked(made: Plan) -> list[str]:
    """The argv of the shell's step, after the steps that must succeed first. Before each step stands its number of words."""
    checks = (word for step in made.shell_checks for word in (str(len(step)), *step))
    return [str(RunPaths(made.run_dir).bin / "checked.sh"), *checks, "0", *made.shell_argv]


def attach(status: Status, *, node: str | None, env: dict[str, str]) -> int:
    """Open a shell on a node of a running job, with the job's container, mounts and environment; return its exit code."""
    own_run.require(status.run_dir, to="open a shell in it")
    if status.state != "RUNNING":
        raise RunError(f"run {status.run_dir.name} is {status.state}: only a running job has nodes to go to")
    step = list(status.manifest.shell_argv)
    where = [f"--nodelist={node}"] if node else []
    # srun accepts only a job's own number. A task of an array has one, which its batch script has recorded.
    started = [one["job_id"] for one in events(status.run_dir) if one["event"] == "start"]
    number = started[-1] if started else status.job_id
    remote = remote_clusters.holding(status.run_dir)
    if remote:
        remote.fetch(status.run_dir, accounting_too=False)
    argv = [step[0], f"--jobid={number}", *where, *_container(status.run_dir, step), *step[1:]]
    if remote:
        return shell.call(remote.connection.terminal(argv, env={}))
    return shell.call(argv, env=_with_terminal(env))


def _container(run_dir: Path, step: list[str]) -> list[str]:
    """The option that names the container that Pyxis has unpacked for the run, if it has: then a shell starts without unpacking
    again.
    """
    image = next((word for word in step if word.startswith("--container-image=")), "")
    names = (path for path in (run_dir / "state").glob("container-*") if path.name.partition("-")[2] in image)
    return [untrusted_files.read_text(path, most=4096).strip() for path in names]


def _with_terminal(env: dict[str, str]) -> dict[str, str]:
    import os

    return {**env, "TERM": os.environ.get("TERM", "dumb")}
