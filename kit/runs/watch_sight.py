"""Says at submit what the stall watch of a job will see."""

from __future__ import annotations

from importlib import metadata

from kit.spec.job import Job


def sight(job: Job) -> str | None:
    """One line for a job with a table `[watch]` that does not switch the watch off; None for any other job."""
    if "watch" not in job.model_fields_set or job.watch.stall is False:
        return None
    if not job.monitor.enabled:
        return "watch: it sees nothing, because monitor.enabled is false"
    try:
        metadata.version("py-spy")
        stacks = "yes"
    except metadata.PackageNotFoundError:
        stacks = "no, the kit was installed without the extra 'stacks'"
    return f"watch: steps: as the program reports them; processes: sampled on each node; stacks: {stacks}"
