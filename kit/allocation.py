"""The arithmetic of a job on a cluster: nodes, tasks, ranks, GPUs and CPUs, each checked against what a node holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from kit.config import Resolved
from kit.errors import ConfigError, Fault
from kit.spec.cluster import QosRow

_UNITS = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Who runs where. memory is sbatch's --mem text, or None for the cluster's default. explained: why, one line each."""

    nodes: int
    gpus_per_node: int
    ranks_per_node: int
    tasks_per_node: int
    cpus_per_task: int
    cpus_per_rank: int
    memory: str | None
    explained: tuple[str, ...]
    # Where several programs share the job, each with ranks of its own.
    ranks_of_roles: int | None = None

    @property
    def world_size(self) -> int:
        """Ranks over all nodes."""
        return self.nodes * self.ranks_per_node if self.ranks_of_roles is None else self.ranks_of_roles

    @property
    def cpus_per_node(self) -> int:
        """CPUs of the job on each node."""
        return self.cpus_per_task * self.tasks_per_node


def lay_out(resolved: Resolved) -> Layout:
    """The layout of a job; ConfigError with every figure that the cluster's nodes or its QOS row cannot give."""
    job, node = resolved.job, resolved.cluster.node
    asked = job.resources
    row = _row(resolved)
    most_gpus = node.gpus if row is None or row.max_gpus_per_node is None else min(node.gpus, row.max_gpus_per_node)
    gpus = most_gpus if asked.gpus_per_node is None else asked.gpus_per_node
    ranks = asked.ranks_per_node or max(1, gpus)
    cpus, why = _cpus(resolved, gpus)
    shape = job.shape or resolved.launcher.shapes[0]
    tasks = ranks if shape == "srun" else 1
    _check(resolved, gpus=gpus, ranks=ranks, cpus=cpus, shape=shape)
    return Layout(
        nodes=asked.nodes,
        gpus_per_node=gpus,
        ranks_per_node=ranks,
        tasks_per_node=tasks,
        cpus_per_task=cpus // tasks,
        cpus_per_rank=cpus // ranks,
        memory=asked.memory,
        explained=(
            f"{asked.nodes} nodes x {ranks} ranks = world size {asked.nodes * ranks}; start shape {shape}: {tasks} tasks a node.",
            f"CPUs: {why}; {cpus // tasks} a task, {cpus // ranks} a rank.",
        ),
    )


def kilobytes(memory: str) -> int:
    """sbatch's memory text in KiB; a bare number is MiB, as sbatch(1) says."""
    unit = memory[-1] if memory[-1] in _UNITS else "M"
    return int(memory.rstrip("KMGT")) * _UNITS[unit]


def _row(resolved: Resolved) -> QosRow | None:
    """The job's row of the QOS table."""
    return resolved.cluster.qos.get(resolved.job.qos) if resolved.job.qos else None


def _cpus(resolved: Resolved, gpus: int) -> tuple[int, str]:
    """CPUs per node and the reason for the figure."""
    asked, node = resolved.job.resources.cpus_per_node, resolved.cluster.node
    if asked is not None:
        return asked, f"{asked} a node, as asked"
    if node.gpus and 0 < gpus < node.gpus:
        share = max(1, node.cpus * gpus // node.gpus)
        return share, f"{share} a node, the share of {gpus} of {node.gpus} GPUs in {node.cpus} CPUs"
    return node.cpus, f"{node.cpus} a node, all of them"


def _check(resolved: Resolved, *, gpus: int, ranks: int, cpus: int, shape: str) -> None:
    job, cluster, place = resolved.job, resolved.cluster, f"a node of {resolved.cluster_name}"
    faults = []

    def refuse(key: str, got: object, allowed: str, hint: str = "") -> None:
        faults.append(Fault(file=resolved.job_file, key=key, got=str(got), allowed=allowed, hint=hint))

    if shape not in resolved.launcher.shapes:
        refuse("shape", repr(shape), f"{', '.join(resolved.launcher.shapes)} (launcher {job.launcher!r})")
    if gpus > cluster.node.gpus:
        refuse("resources.gpus_per_node", gpus, f"at most {cluster.node.gpus}: {place} has no more")
    if cpus > cluster.node.cpus:
        refuse("resources.cpus_per_node", cpus, f"at most {cluster.node.cpus}: {place} has no more")
    if ranks > cpus:
        refuse(
            "resources.ranks_per_node",
            ranks,
            f"at most {cpus}, one CPU a rank",
            "ask for more cpus_per_node or fewer ranks",
        )
    memory = job.resources.memory
    if memory and cluster.node.memory and kilobytes(memory) > kilobytes(cluster.node.memory):
        refuse("resources.memory", memory, f"at most {cluster.node.memory}: {place} has no more")
    # A row gives no more than a node has: where both are passed, the row's limit is the one to know.
    rules = _broken_rules(resolved, gpus=gpus, cpus=cpus)
    faults = [fault for fault in faults if fault.key not in {rule.key for rule in rules}]
    for rule in rules:
        refuse(rule.key, rule.got, f"at most {rule.limit} under QOS {job.qos!r}: its rule {rule.name}")
    if faults:
        raise ConfigError.of(*faults)


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """A rule of the QOS row: its name there, the job's key, what is asked, the most that is given."""

    name: str
    key: str
    got: object
    limit: object


def _broken_rules(resolved: Resolved, *, gpus: int, cpus: int) -> list[_Rule]:
    row = _row(resolved)
    if row is None:
        return []
    asked = resolved.job.resources
    nodes = asked.nodes + resolved.job.retry.spares
    # To sbatch no memory is all of the node's, and no time has no end.
    all_memory = kilobytes(resolved.cluster.node.memory or "0") or inf
    rules: list[tuple[str, str, Any, Any, Callable[[Any], float]]] = [
        ("max_nodes", "resources.nodes", nodes, row.max_nodes, float),
        ("max_gpus_per_node", "resources.gpus_per_node", gpus, row.max_gpus_per_node, float),
        ("cpus_per_node", "resources.cpus_per_node", cpus, row.cpus_per_node, float),
        ("memory", "resources.memory", asked.memory, row.memory, lambda text: kilobytes(text) or all_memory),
        ("time", "resources.time", asked.time, row.time, lambda text: minutes(text) or inf),
    ]
    broken = [
        _Rule(name=name, key=key, got=got, limit=limit)
        for name, key, got, limit, measure in rules
        if got is not None and limit is not None and measure(got) > measure(limit)
    ]
    # sbatch(1), --exclusive: the job is given all CPUs of its nodes, whatever it asks for.
    whole, most = resolved.cluster.node.cpus, row.cpus_per_node
    if resolved.job.slurm.exclusive and most is not None and whole > most:
        got = f"true, which is all {whole} CPUs of a node"
        broken.append(_Rule(name="cpus_per_node", key="slurm.exclusive", got=got, limit=most))
    return broken


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
