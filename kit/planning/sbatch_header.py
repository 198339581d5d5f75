"""Writes and reads the head of a batch script: the options for sbatch and salloc, and comments for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby, takewhile

from kit.allocation import Allocation
from kit.errors import ConfigError
from kit.planning.decisions import Decisions
from kit.planning.placement import RolePlacement
from kit.schema.cluster import NodeShape
from kit.schema.job import Job

_HEADER = "#SBATCH "
_GRES = "--gres="


def sbatch_options(decisions: Decisions) -> list[str]:
    """The sbatch options, one for each header line, in a fixed order."""
    job, slurm, error = decisions.job, decisions.job.slurm, decisions.paths.error
    options = salloc_options(decisions)
    options += [f"--output={decisions.paths.output}", *([f"--error={error}"] if error else []), "--open-mode=append"]
    # With `B:` only the batch shell gets the signal, and passes it on. Without it, Slurm would signal every process of the step.
    options += [f"--signal=B:USR1@{slurm.lead}"] if slurm.lead and job.resources.time else []
    options += [f"--{n}={v}" for n, v in (("mail-user", slurm.mail_user), ("mail-type", slurm.mail_type)) if v]
    again = "--requeue=expedite" if decisions.resolved.cluster.expedited_requeue else "--requeue"
    options += [again if job.goes_back else "--no-requeue"]
    # With spares or replicas, the job continues after a lost node. Otherwise Slurm ends it and, with --requeue, queues it again.
    options += ["--no-kill"] if decisions.outlives else []
    options += [option for option in slurm.extra if not option.startswith(_GRES)]
    for option in options:
        # A newline would begin a line of the script.
        if not option.isprintable():
            raise ConfigError(f"{option!r}: an option of sbatch cannot have a newline or another control character")
    return options


def salloc_options(decisions: Decisions) -> list[str]:
    """Only the resources, for an interactive allocation."""
    job, slurm, allocation = decisions.job, decisions.job.slurm, decisions.allocation
    valued: Mapping[str, object | None] = {
        "job-name": job.name,
        "account": slurm.account,
        "partition": slurm.partition,
        "qos": slurm.qos,
        "nodes": decisions.every_node,
        "ntasks-per-node": allocation.tasks_per_node,
        "cpus-per-task": allocation.cpus_per_task,
        "mem": allocation.memory,
        "time": job.resources.time,
        "segment": job.resources.segment,
        "switches": job.resources.switches,
        "constraint": slurm.constraint,
        "exclude": ",".join(filter(None, [slurm.exclude, *decisions.site.avoid])) or None,
        "nodelist": slurm.nodelist,
        "reservation": slurm.reservation,
        "licenses": slurm.licenses,
    }
    options = [f"--{name}={value}" for name, value in valued.items() if value is not None]
    return [*options, *_gres_options(decisions.node, job, allocation), *(["--exclusive"] if slurm.exclusive else [])]


def _gres_options(node: NodeShape, job: Job, allocation: Allocation) -> list[str]:
    """GPUs and all other generic resources. Of two options --gres Slurm takes the last one alone, so there is one."""
    kind, count = job.resources.gpu_type, allocation.gpus_per_node
    others = [f"{name}:{number}" for name, number in job.resources.gres.items()]
    others += [option.removeprefix(_GRES) for option in job.slurm.extra if option.startswith(_GRES)]
    if not count or node.gres == "none":
        gpus = []
    elif node.gres == "gpus-per-node":
        gpus = [f"--gpus-per-node={kind}:{count}" if kind else f"--gpus-per-node={count}"]
    else:
        name, _, own = node.gres.removeprefix("gres:").partition(":")
        others.insert(0, ":".join(filter(None, [name, kind or own, str(count)])))
        gpus = []
    return [*gpus, *([_GRES + ",".join(others)] if others else [])]


def explanation(decisions: Decisions) -> Iterator[str]:
    """Comments for the reader of the script: the placement and world size of each role, and the reason for the number of CPUs."""
    allocation = decisions.allocation
    first = decisions.roles[0]
    if first.plain:
        tasks = f"start shape {decisions.job.shape}: {_count(allocation.tasks_per_node, 'task')} a node"
        yield f"{_size(first)}; {tasks}."
        cpus = f"{allocation.cpus_per_task} per task, {allocation.cpus_per_rank} per rank"
        yield f"CPUs: {allocation.cpus_reason}; {cpus}."
    else:
        yield f"{_count(allocation.nodes, 'node')}, {_count(len(decisions.roles), 'role')}."
        # Roles with the same scripts differ only in their place.
        for _, group in groupby(decisions.roles, key=lambda role: role.scripts):
            yield _describe_roles([*group])
        yield f"CPUs: {allocation.cpus_reason}."
    yield from (line.rstrip() for line in decisions.extra.explained)


def _describe_roles(alike: list[RolePlacement]) -> str:
    one, last = alike[0], alike[-1]
    name = one.name if one is last else f"{one.name} to {last.name}, each"
    return f"{name}: {_size(one)}; {one.shape}, {_count(one.cpus_per_rank, 'CPU')} a rank."


def _size(one: RolePlacement) -> str:
    size = f"{_count(one.nodes, 'node')} x {_count(one.ranks_per_node, 'rank')}"
    return f"{size}, a service" if one.role.policy == "service" else f"{size} = world size {one.world_size}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def header(script: str) -> list[str]:
    """The sbatch options of a batch script."""
    head = takewhile(lambda line: line.startswith("#"), script.splitlines())
    return [line.removeprefix(_HEADER) for line in head if line.startswith(_HEADER)]


def explained(script: str) -> list[str]:
    """The comments for people at the head of a batch script."""
    head = takewhile(lambda line: line.startswith("#"), script.splitlines())
    return [line.removeprefix("# ") for line in head if line.startswith("# ") and not line.startswith("# shellcheck")]
