"""From sbatch's options for nodes, tasks, CPUs, GPUs and memory to the numbers per node of [resources]."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Sizes:
    """Numbers per node; None where the script leaves them to Slurm. problems: what has no number per node.

    given: the header's options, by long name.
    """

    nodes: int = 1
    tasks: int = 1
    gpus: int = 0
    cpus: int | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def slurm_variables(self) -> dict[str, str]:
        """The variables of a batch script whose values follow from its header. sbatch sets some of them only for their option."""
        variables: dict[str, object] = dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), self.nodes)
        if "ntasks" in self.given or "ntasks-per-node" in self.given:
            variables |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), self.nodes * self.tasks)
        if "ntasks-per-node" in self.given:
            variables["SLURM_NTASKS_PER_NODE"] = self.tasks
        if self.gpus:
            variables["SLURM_GPUS_ON_NODE"] = self.gpus
        if "gpus-per-node" in self.given:
            variables["SLURM_GPUS_PER_NODE"] = self.given["gpus-per-node"]
        if "gpus" in self.given:
            variables["SLURM_GPUS"] = self.given["gpus"]
        if "cpus-per-task" in self.given:
            variables["SLURM_CPUS_PER_TASK"] = self.given["cpus-per-task"]
        return {name: str(value) for name, value in variables.items()}


def read_sizes(counts: Mapping[str, str], resources: dict[str, Any]) -> Sizes:
    """Write what does not depend on the program into [resources]: nodes, GPUs, memory. Returns the numbers."""
    sizes = Sizes(given=counts)
    sizes.nodes = _number(counts, "nodes", sizes) or 1
    _tasks(counts, sizes)
    _gpus(counts, sizes, resources)
    if "ntasks-per-gpu" in counts:
        each = (_number(counts, "ntasks-per-gpu", sizes) or 1) * sizes.gpus
        if not each or ("ntasks-per-node" in counts and each != sizes.tasks):
            sizes.problems.append(f"--ntasks-per-gpu={counts['ntasks-per-gpu']} does not agree with the other numbers")
        sizes.tasks = each or 1
    per_task = _number(counts, "cpus-per-task", sizes)
    sizes.cpus = per_task * sizes.tasks if per_task else None
    if "cpus-per-gpu" in counts:
        per_gpu = (_number(counts, "cpus-per-gpu", sizes) or 0) * sizes.gpus
        if sizes.cpus not in (None, per_gpu):
            sizes.problems.append(f"--cpus-per-gpu={counts['cpus-per-gpu']} and --cpus-per-task do not agree")
        sizes.cpus = per_gpu or sizes.cpus
    resources["nodes"] = sizes.nodes
    resources["gpus_per_node"] = sizes.gpus
    if sizes.cpus:
        resources["cpus_per_node"] = sizes.cpus
    _memory(counts, sizes, resources)
    return sizes


def _number(counts: Mapping[str, str], name: str, sizes: Sizes) -> int | None:
    value = counts.get(name)
    if value is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]*", value):
        sizes.problems.append(f"--{name}={value} is no whole number")
        return None
    return int(value)


def _tasks(counts: Mapping[str, str], sizes: Sizes) -> None:
    each, total = _number(counts, "ntasks-per-node", sizes), _number(counts, "ntasks", sizes)
    if total and "nodes" not in counts and not each:
        if total > 1:
            sizes.problems.append(f"--ntasks={total} without --nodes: Slurm may spread the tasks unevenly over nodes")
        return
    if total and each and "nodes" not in counts:
        if total % each:
            sizes.problems.append(f"--ntasks={total} does not divide by {each} tasks per node")
        sizes.nodes = max(total // each, 1)
    if total and each and "nodes" in counts and total != each * sizes.nodes:
        sizes.problems.append(f"--ntasks={total} is not {sizes.nodes} nodes x {each} tasks")
    if total and not each:
        if total % sizes.nodes:
            sizes.problems.append(f"--ntasks={total} does not divide by {sizes.nodes} nodes")
        each = total // sizes.nodes
    sizes.tasks = each or 1


def _gpus(counts: Mapping[str, str], sizes: Sizes, resources: dict[str, Any]) -> None:
    requests: list[tuple[str, int, str]] = []
    for name, times in (("gpus-per-node", 1), ("gpus-per-task", sizes.tasks), ("gpus", 0)):
        if name in counts:
            kind, _, number = counts[name].rpartition(":")
            if not number.isdigit():
                sizes.problems.append(f"--{name}={counts[name]} has no number of GPUs")
                continue
            each = int(number) * times if times else int(number) // sizes.nodes
            requests.append((kind, each, f"--{name}={counts[name]}"))
            if not times and int(number) % sizes.nodes:
                sizes.problems.append(f"--gpus={counts[name]} does not divide by {sizes.nodes} nodes")
    for item in filter(None, counts.get("gres", "").split(",")):
        name, *rest = item.removeprefix("gres/").replace("=", ":").split(":")
        number = rest.pop() if rest and rest[-1].isdigit() else "1"
        if name == "gpu":
            requests.append((rest[0] if rest else "", int(number), f"--gres={item}"))
        elif name != "none" and rest and not re.fullmatch(r"[A-Za-z0-9_.-]+", rest[-1]):
            sizes.problems.append(f"--gres={item} has no number")
        elif name != "none":
            resources.setdefault("gres", {})[":".join([name, *rest])] = int(number)
    if requests:
        kind, sizes.gpus, _ = requests[0]
        kind = next((one for one, _, _ in requests if one), "")
        if {number for _, number, _ in requests} != {sizes.gpus} or {one for one, _, _ in requests if one} - {kind}:
            sizes.problems.append(f"{' and '.join(text for _, _, text in requests)}: they do not name the same GPUs")
        if kind:
            resources["gpu_type"] = kind


def _memory(counts: Mapping[str, str], sizes: Sizes, resources: dict[str, Any]) -> None:
    given = [name for name in ("mem", "mem-per-cpu", "mem-per-gpu") if name in counts]
    if len(given) > 1:
        sizes.problems.append(f"--{' and --'.join(given)}: Slurm takes one of them")
    for name, times in (("mem", 1), ("mem-per-cpu", sizes.cpus or sizes.tasks), ("mem-per-gpu", sizes.gpus)):
        if name not in counts:
            continue
        found = re.fullmatch(r"([0-9]+)([KMGT]?)B?", counts[name].upper())
        if not found or not times:
            sizes.problems.append(f"--{name}={counts[name]} is no amount of memory per node")
        else:
            resources["memory"] = f"{int(found[1]) * times}{found[2]}"
