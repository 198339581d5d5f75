"""`kit shell`: a shell in the job's container, on a node of an allocation of its own or of a run that is on."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from pathlib import Path

from kit import shell
from kit.errors import RunError
from kit.planning.plan import Plan
from kit.runs import folder, manifest, remote_clusters, secret, workspace
from kit.runs.run_facts import events
from kit.runs.status import Status
from kit.runs.submit import Prepared, require_on_this_machine, require_ready, secrets_of
from kit.slurm import client
from kit.spec.run_paths import RunPaths


def allocate(prepared: Prepared) -> int:
    """salloc the job's resources and open a shell in its container on the first node; return the shell's exit code.

    Before it the nodes are checked as a batch job's are; 72 when one refuses.
    """
    require_on_this_machine(prepared, "'kit shell'")
    require_ready(prepared)
    made = prepared.plan
    record = manifest.of(
        made,
        job_file=prepared.job_file,
        user=getpass.getuser(),
        now=datetime.now(UTC),
        slurm_version=client.version(env=prepared.env),
        workspace=workspace.record(prepared.scan, prepared.resolved, patch=False),
    )
    record = record.model_copy(update={"interactive": True})
    folder.create(made, record, secrets=secrets_of(prepared))
    try:
        return shell.call([*made.salloc_argv, *_checked(made)], env=_with_terminal(prepared.env))
    finally:
        secret.remove(made.run_dir)


def _checked(made: Plan) -> list[str]:
    """The shell's step behind those that have to end well, each with its number of words in front."""
    checks = (word for step in made.shell_checks for word in (str(len(step)), *step))
    return [str(RunPaths(made.run_dir).bin / "checked.sh"), *checks, "0", *made.shell_argv]


def attach(status: Status, *, node: str | None, env: dict[str, str]) -> int:
    """A shell beside a running job, in the same container, mounts and environment; return its exit code."""
    remote_clusters.require_here(status.run_dir, "'kit shell --attach'")
    if status.state != "RUNNING":
        raise RunError(f"run {status.run_dir.name} is {status.state}: only a running job has nodes to go to")
    step = list(status.manifest.shell_argv)
    where = [f"--nodelist={node}"] if node else []
    # srun takes a job's own number only; a task of an array has one, which its batch script has recorded.
    started = [one["job_id"] for one in events(status.run_dir) if one["event"] == "start"]
    number = started[-1] if started else status.job_id
    return shell.call(
        [step[0], f"--jobid={number}", *where, *_container(status.run_dir, step), *step[1:]], env=_with_terminal(env)
    )


def _container(run_dir: Path, step: list[str]) -> list[str]:
    """The option that names what Pyxis unpacked of the step's image for the run, if it did: a shell does not wait for another."""
    image = next((word for word in step if word.startswith("--container-image=")), "")
    names = (path for path in (run_dir / "state").glob("container-*") if path.name.partition("-")[2] in image)
    return [path.read_text(encoding="utf-8").strip() for path in names]


def _with_terminal(env: dict[str, str]) -> dict[str, str]:
    import os

    return {**env, "TERM": os.environ.get("TERM", "dumb")}
