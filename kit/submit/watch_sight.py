"""Says at submit what the stall watch of a job will see."""

from __future__ import annotations

from importlib import metadata

from kit.schema.job import Job


def sight(job: Job) -> str | None:
    """One line for a job that is watched; None for any other."""
    if not job.is_watched:
        return None
    if not job.monitor.enabled:
        return "watch: nothing is seen, because monitor.enabled is false"
    try:
        metadata.version("py-spy")
        stacks = "yes"
    except metadata.PackageNotFoundError:
        stacks = "no, the kit was installed without the extra 'stacks'"
    return (
        "watch: steps: as the program reports them, else from its log (kit top, kit why); processes: sampled on each node; "
        f"stacks: {stacks}; collectives: NCCL's, written by torch's flight recorder at a time-out"
    )
