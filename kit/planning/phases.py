"""Says in the head of a single file what its job does, phase by phase, in at most nine lines."""

from __future__ import annotations

from collections.abc import Iterator

from kit.planning import steps
from kit.planning.decisions import Decisions


def phases(decisions: Decisions) -> list[str]:
    """A line for each phase that this job has, in order."""
    found = [*_phases(decisions)]
    width = max(len(name) for name, _ in found)
    return [f"{name:{width}}  {text}" for name, text in found]


def _phases(decisions: Decisions) -> Iterator[tuple[str, str]]:
    job, slurm = decisions.job, decisions.job.slurm
    yield (
        "unpack",
        "writes the files below into the run folder of this job, and starts its batch.sh, which does the rest",
    )
    if steps.stage_step(decisions):
        yield "stage", "copies the image to the disk of each node"
    if steps.preflight_step(decisions):
        bad = "is left out when the job is queued again" if job.preflight.on_failure == "exclude" else "ends the job"
        yield "check", f"bin/preflight.sh on each node; a node that fails {bad}"
    if steps.monitor_step(decisions):
        yield "monitor", "bin/gpu-monitor.sh on each node, until the ranks have ended"
    each = "a step of srun for each role" if len(decisions.roles) > 1 else "a step of srun"
    watched = ", watched for stalls" if job.monitor.enabled and job.watch.limit else ""
    yield "ranks", f"{each}{watched}: worker.sh sets what a rank needs, and becomes the program of program.sh"
    if slurm.lead and job.resources.time:
        first, *rest = slurm.lead_signals.split(",")
        names = " ".join([first, *(f"(or {name}, if they do not catch that)" for name in rest)])
        yield "signal", f"{slurm.lead} s before the time limit the ranks get {names}, to save"
    if job.retry.in_allocation or job.retry.requeue:
        yield (
            "retry",
            f"after a fault: {job.retry.in_allocation} times in the allocation, {job.retry.requeue} by requeue",
        )
    yield "end", "the steps that are left are ended, logs are merged, and the exit code is the program's"
