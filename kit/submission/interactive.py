"""`kit shell`: a shell in the job's container, on a node of a new allocation or of a running run."""

from __future__ import annotations

from pathlib import Path

from kit.errors import RunError
from kit.files import untrusted_files
from kit.hosts import clusters
from kit.hosts.status import Status
from kit.planning.plan import Plan
from kit.record import own_run
from kit.record.run_facts import events
from kit.schema.run_paths import RunPaths
from kit.submission.prepare_run import Prepared
from kit.submission.submit import new_run, require_ready


def allocate(prepared: Prepared) -> int:
    """Allocate the job's resources with salloc and open a shell in its container on the first node; return the shell's exit code.

    The nodes are checked first, as for a batch job; the exit code is 72 when a check fails.
    """
    require_ready(prepared)
    snapshot = prepared.site.snapshot
    argv = [*prepared.plan.salloc_argv, *_checked(prepared.plan)]
    return prepared.host.open_shell(new_run(prepared, interactive=True), argv, snapshot.folder if snapshot else None)


def _checked(plan: Plan) -> list[str]:
    """The argv of the shell's step, after the steps that must succeed first. Before each step stands its number of words."""
    checks = (word for step in plan.shell_checks for word in (str(len(step)), *step))
    return [str(RunPaths(plan.run_dir).bin / "checked.sh"), *checks, "0", *plan.shell_argv]


def attach(status: Status, *, node: str | None) -> int:
    """Open a shell on a node of a running job, with the job's container, mounts and environment; return its exit code."""
    own_run.require(status.run_dir, to="open a shell in it")
    if status.state != "RUNNING":
        raise RunError(f"run {status.run_dir.name} is {status.state}: only a running job has nodes to go to")
    step = list(status.manifest.shell_argv)
    where = [f"--nodelist={node}"] if node else []
    # srun accepts only a job's own number. A task of an array has one, which its batch script has recorded.
    started = [one["job_id"] for one in events(status.run_dir) if one["event"] == "start"]
    number = started[-1] if started else status.job_id
    host = clusters.host_of_run(status.run_dir)
    host.fetch(status.run_dir, accounting_too=False)
    argv = [step[0], f"--jobid={number}", *where, *_container(status.run_dir, step), *step[1:]]
    return host.on_terminal(argv)


def _container(run_dir: Path, step: list[str]) -> list[str]:
    """The option that names the container that Pyxis has unpacked for the run, if it has: then a shell starts without unpacking
    again.
    """
    image = next((word for word in step if word.startswith("--container-image=")), "")
    names = (path for path in (run_dir / "state").glob("container-*") if path.name.partition("-")[2] in image)
    return [untrusted_files.read_text(path, most=4096).strip() for path in names]
