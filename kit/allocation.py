"""Allocation: the job's nodes, and its GPUs, CPUs, memory and tasks on each, checked against the cluster's
nodes and its QOS row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from kit.config import Resolved
from kit.errors import ConfigError, Fault
from kit.schema.cluster import QosRow
from kit.validation import toml

# The meaning of 0 in sbatch.
_NO_LIMIT = {"memory": "0 asks for all memory of a node,", "time": "0 asks for no time limit,"}
_UNITS = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Nodes of a job, and its GPUs, CPUs, memory and tasks on each.

    ranks_per_node, tasks_per_node: of a job without roles; each role has its own in its RolePlacement. memory: sbatch's --mem text;
    None for the cluster's default. cpus_reason: the reason for the number of CPUs, for the head of the batch script.
    """

    nodes: int
    gpus_per_node: int
    ranks_per_node: int
    tasks_per_node: int
    cpus_per_task: int
    cpus_per_rank: int
    memory: str | None
    cpus_reason: str

    @property
    def world_size(self) -> int:
        """Ranks over all nodes of a job without roles, which all train together."""
        return self.nodes * self.ranks_per_node

    @property
    def cpus_per_node(self) -> int:
        """CPUs of the job on each node."""
        return self.cpus_per_task * self.tasks_per_node


def allocate(resolved: Resolved) -> Allocation:
    """The allocation of a completed job. ConfigError with every value that the cluster's nodes or its QOS row cannot provide."""
    job, node = resolved.job, resolved.cluster.node
    asked = job.resources
    row = _row(resolved)
    most_gpus = node.gpus if row is None or row.max_gpus_per_node is None else min(node.gpus, row.max_gpus_per_node)
    gpus = most_gpus if asked.gpus_per_node is None else asked.gpus_per_node
    ranks = asked.ranks_per_node or max(1, gpus)
    cpus, why = _cpus(resolved, gpus)
    _check(resolved, gpus=gpus, ranks=ranks, cpus=cpus)
    # With warm ranks no torchrun starts them: each is a task of its own.
    tasks = ranks if job.shape == "srun" or (job.shape == "torchrun" and job.retry.warm) else 1
    return Allocation(
        nodes=asked.nodes,
        gpus_per_node=gpus,
        ranks_per_node=ranks,
        tasks_per_node=tasks,
        cpus_per_task=cpus // tasks,
        cpus_per_rank=cpus // ranks,
        memory=asked.memory,
        cpus_reason=why,
    )


def kilobytes(memory: str) -> int:
    """sbatch's memory text in KiB; a bare number is MiB, as in sbatch(1)."""
    unit = memory[-1] if memory[-1] in _UNITS else "M"
    return int(memory.rstrip("KMGT")) * _UNITS[unit]


def _row(resolved: Resolved) -> QosRow | None:
    """The job's row of the QOS table."""
    return resolved.cluster.qos.get(resolved.job.qos) if resolved.job.qos else None


def _cpus(resolved: Resolved, gpus: int) -> tuple[int, str]:
    """CPUs per node, and the reason for the number."""
    asked, node = resolved.job.resources.cpus_per_node, resolved.cluster.node
    if asked is not None:
        return asked, f"{asked} per node, as asked"
    if node.gpus and 0 < gpus < node.gpus:
        share = max(1, node.cpus * gpus // node.gpus)
        return share, f"{share} per node, the share of {gpus} of {node.gpus} GPUs in {node.cpus} CPUs"
    return node.cpus, f"{node.cpus} per node, all of them"


def _check(resolved: Resolved, *, gpus: int, ranks: int, cpus: int) -> None:
    # A row's limit is at most a node's resources, so if both are exceeded, report the row's limit.
    of_row = {fault.key: fault for fault in _above_row(resolved, gpus=gpus, cpus=cpus)}
    of_node = [fault for fault in _above_node(resolved, gpus=gpus, ranks=ranks, cpus=cpus) if fault.key not in of_row]
    if of_node or of_row:
        raise ConfigError.of(*of_node, *of_row.values(), file=resolved.job_file)


def _above_node(resolved: Resolved, *, gpus: int, ranks: int, cpus: int) -> Iterator[Fault]:
    """Requests that no node of the cluster can fulfil."""
    node, resources = resolved.cluster.node, resolved.job.resources
    memory = resources.memory

    def more(key: str, got: object, most: object, what: str) -> Fault:
        problem = f"{got} is more than a node of {resolved.cluster_name} has: {most}{what}"
        return Fault(key=f"resources.{key}", problem=problem, hint=f"{key} = {toml(most)}")

    if gpus > node.gpus:
        yield more("gpus_per_node", gpus, node.gpus, " GPUs")
    if cpus > node.cpus:
        yield more("cpus_per_node", cpus, node.cpus, " CPUs")
    if ranks > cpus:
        problem = f"{ranks} ranks need at least as many CPUs, and the job has {cpus} on each node"
        yield Fault(key="resources.ranks_per_node", problem=problem, hint=f"ranks_per_node = {cpus}")
    if resources.gpu_type and (node.gres == "none" or not gpus):
        problem = (
            "the job asks for no GPUs"
            if not gpus
            else f"{resolved.cluster_name} has no option for it: node.gres is none"
        )
        yield Fault(key="resources.gpu_type", problem=problem, hint="remove the line")
    if memory and node.memory and kilobytes(memory) > kilobytes(node.memory):
        yield more("memory", memory, node.memory, "")


def _above_row(resolved: Resolved, *, gpus: int, cpus: int) -> Iterator[Fault]:
    """Requests that the job's QOS row does not allow."""
    row, job = _row(resolved), resolved.job
    if row is None:
        return
    asked = job.resources
    nodes = asked.nodes + job.retry.spares
    # In sbatch, 0 memory means all of the node's, and time 0 means no limit.
    all_memory = kilobytes(resolved.cluster.node.memory or "0") or inf
    rules: list[tuple[str, str, Any, Any, Callable[[Any], float]]] = [
        ("max_nodes", "resources.nodes", nodes, row.max_nodes, float),
        ("max_gpus_per_node", "resources.gpus_per_node", gpus, row.max_gpus_per_node, float),
        ("cpus_per_node", "resources.cpus_per_node", cpus, row.cpus_per_node, float),
        ("memory", "resources.memory", asked.memory, row.memory, lambda text: kilobytes(text) or all_memory),
        ("time", "resources.time", asked.time, row.time, lambda text: minutes(text) or inf),
    ]
    for name, key, got, limit, measure in rules:
        if got is not None and limit is not None and measure(got) > measure(limit):
            said = _NO_LIMIT[name] if name in _NO_LIMIT and measure(got) in {all_memory, inf} else f"{got} is"
            hint = f"{key.rpartition('.')[2]} = {toml(limit)}"
            if name == "max_nodes" and job.retry.spares:
                said = f"{asked.nodes} with {job.retry.spares} spares is"
                hint = f"nodes = {limit - job.retry.spares}" if limit > job.retry.spares else "[retry] spares = 0"
            yield Fault(key=key, problem=f"{said} more than QOS {job.qos!r} allows: {name} = {toml(limit)}", hint=hint)
    # sbatch(1), --exclusive: the job gets all CPUs of its nodes, whatever it asks for.
    whole, most = resolved.cluster.node.cpus, row.cpus_per_node
    if job.slurm.exclusive and most is not None and whole > most:
        problem = f"an exclusive job gets all {whole} CPUs of a node, and QOS {job.qos!r} allows cpus_per_node = {most}"
        yield Fault(key="slurm.exclusive", problem=problem, hint="exclusive = false")


def minutes(limit: str) -> float:
    """sbatch's time text in minutes: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    days, dash, rest = limit.rpartition("-")
    parts = [int(p) for p in rest.split(":")]
    if dash:
        hours, mins, secs = (*parts, 0, 0)[:3]
        return int(days) * 1440 + hours * 60 + mins + secs / 60
    if len(parts) == 3:
        return parts[0] * 60 + parts[1] + parts[2] / 60
    return parts[0] + (parts[1] / 60 if len(parts) == 2 else 0)
