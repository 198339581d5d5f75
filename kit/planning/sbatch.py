"""The head of a batch script: what sbatch and salloc are asked for, and how such a head is read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from kit.allocation import Layout
from kit.spec.cluster import NodeShape
from kit.spec.job import Job

_HEADER = "#SBATCH "


def sbatch_options(
    job: Job,
    node: NodeShape,
    layout: Layout,
    *,
    output: str,
    error: str | None = None,
    outlives: bool = False,
    avoid: Sequence[str] = (),
) -> list[str]:
    """The header, one option a line, in a fixed order.

    output, error: files, with Slurm's patterns; without `error` both streams go to one. avoid: nodes that the job is kept off,
    besides its own `exclude`. outlives: the job goes on when a node is lost.
    """
    slurm = job.slurm
    options = _resource_options(job, node, layout, avoid)
    options += [f"--output={output}", *([f"--error={error}"] if error else []), "--open-mode=append"]
    # `B:` reaches the batch shell, which passes the signal on; without it Slurm would signal every process of the step.
    options += [f"--signal=B:USR1@{slurm.lead}"] if slurm.lead and job.resources.time else []
    options += [f"--{n}={v}" for n, v in (("mail-user", slurm.mail_user), ("mail-type", slurm.mail_type)) if v]
    options += ["--requeue" if goes_back(job) else "--no-requeue"]
    # With spares, or with replicas, the job outlives a lost node; without, Slurm ends it and, with --requeue, queues it again.
    options += ["--no-kill"] if outlives else []
    return [*options, *slurm.extra]


def header(script: str) -> list[str]:
    """The sbatch options of a batch script."""
    head = takewhile(lambda line: line.startswith("#"), script.splitlines())
    return [line.removeprefix(_HEADER) for line in head if line.startswith(_HEADER)]


def explained(script: str) -> list[str]:
    """What the head of a batch script says for people: the layout, and who runs where."""
    head = takewhile(lambda line: line.startswith("#"), script.splitlines())
    return [line.removeprefix("# ") for line in head if line.startswith("# ") and not line.startswith("# shellcheck")]


def salloc_options(job: Job, node: NodeShape, layout: Layout, *, avoid: Sequence[str] = ()) -> list[str]:
    """The same resources for an interactive allocation."""
    return _resource_options(job, node, layout, avoid)


def _resource_options(job: Job, node: NodeShape, layout: Layout, avoid: Sequence[str]) -> list[str]:
    slurm = job.slurm
    valued: Mapping[str, object | None] = {
        "job-name": job.name,
        "account": slurm.account,
        "partition": slurm.partition,
        "qos": slurm.qos,
        "nodes": layout.nodes + job.retry.spares,
        "ntasks-per-node": layout.tasks_per_node,
        "cpus-per-task": layout.cpus_per_task,
        "mem": layout.memory,
        "time": job.resources.time,
        "constraint": slurm.constraint,
        "exclude": ",".join(filter(None, [slurm.exclude, *avoid])) or None,
        "nodelist": slurm.nodelist,
        "reservation": slurm.reservation,
        "licenses": slurm.licenses,
    }
    options = [f"--{name}={value}" for name, value in valued.items() if value is not None]
    return [*options, *_gpu_options(node, layout), *(["--exclusive"] if slurm.exclusive else [])]


def goes_back(job: Job) -> bool:
    """Whether Slurm may queue the job again."""
    return job.slurm.requeue or job.retry.requeue > 0 or job.preflight.on_failure == "exclude"


def _gpu_options(node: NodeShape, layout: Layout) -> list[str]:
    if not layout.gpus_per_node or node.gres == "none":
        return []
    if node.gres == "gpus-per-node":
        return [f"--gpus-per-node={layout.gpus_per_node}"]
    return [f"--gres={node.gres.removeprefix('gres:')}:{layout.gpus_per_node}"]
