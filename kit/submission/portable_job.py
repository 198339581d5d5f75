"""Refuses jobs that need this machine's files, for a cluster that does not share them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.errors import ConfigError, Fault
from kit.hosts.clusters import refuse
from kit.planning.batch_file import users_script
from kit.schema import sbatch_lines

if TYPE_CHECKING:
    from kit.config import Resolved
    from kit.planning.plan import Plan
    from kit.submission.recorded_inputs import Earlier


def require(resolved: Resolved, earlier: Earlier | None) -> None:
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
    if earlier and (earlier.from_step is not None or earlier.node_order):
        refuse(resolved.cluster_name, "a rerun from a checkpoint")


def require_header(made: Plan) -> None:
    """ConfigError if a batch script of the user's own has files in its header that are on this machine."""
    asked = sbatch_lines.options(users_script(made.decisions) or "")
    file, _ = made.decisions.resolved.template or ("", "")
    hints = {
        "output": "remove the line; kit logs shows what the script prints",
        "input": "an absolute path on the cluster",
    }
    faults = [
        Fault(
            file=file,
            key=f"#SBATCH --{name}",
            problem=f"{asked[name]!r} is in the job's folder on this machine",
            hint=hints.get(name, hints["output"]),
        )
        for name in ("output", "error", "input")
        if name in asked and not asked[name].startswith("/")
    ]
    if faults:
        raise ConfigError.of(*faults)
