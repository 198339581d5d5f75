"""Checks whether a tensor or expert parallel group fits into a block or leaf switch of the cluster. It warns and never refuses.

A block is a set of nodes with a faster link between them, such as NVLink. Slurm is asked only if a group needs several nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import prod

from kit.errors import Fault, ToolError
from kit.planning.plan import Plan
from kit.slurm import run_local_or_ssh

_TIMEOUT_S = 5.0
# scontrol(1): a line for each block (topology/block) and each leaf switch (topology/tree).
_LINE = re.compile(r"(?m)^(BlockName=\S+ BlockIndex=\d+|SwitchName=\S+ Level=0 .*?) ?\bNodes=(\S+)")
# Options of Megatron-LM, of TorchTitan, and of the kit's own programs, with '_' as '-'.
_TENSOR = ("--tensor-model-parallel-size", "--parallelism.tensor-parallel-degree", "--tp")
_EXPERT = ("--expert-model-parallel-size", "--parallelism.expert-parallel-degree")
# Megatron-LM also splits each expert, by default over as many ranks as the rest of the model.
_EXPERT_TENSOR = "--expert-tensor-parallel-size"


@dataclass(frozen=True, kw_only=True)
class ParallelGroup:
    """Ranks that exchange data within each layer, and the option that sets their number. They have consecutive rank numbers."""

    option: str
    ranks: int


@dataclass(frozen=True, kw_only=True)
class Topology:
    """How a cluster's nodes are connected. kind: the unit that connects them. largest: number of nodes in the largest unit."""

    kind: str
    largest: int


def warnings(plan: Plan, *, env: Mapping[str, str]) -> list[Fault]:
    """Warnings for the user; none if Slurm has no topology or cannot be asked, or if the job has roles."""
    whole = plan.roles[0]
    words = (*plan.job.args, *plan.decisions.extra.args)
    group = largest_group(words)
    if not whole.plain or group is None or group.ranks <= whole.ranks_per_node:
        return []
    topology = ask(env=env)
    if topology is None:
        return []
    segment, file = plan.job.resources.segment, plan.decisions.resolved.job_file
    said = list(broken(group, topology, nodes=whole.nodes, ranks_per_node=whole.ranks_per_node, segment=segment))
    table = "args" if largest_group(plan.job.args) == group else "megatron"
    return [replace(one, file=file, key=one.key or table) for one in said]


def broken(
    group: ParallelGroup, topology: Topology, *, nodes: int, ranks_per_node: int, segment: int | None
) -> Iterator[Fault]:
    """A warning for a group that is larger than the largest block, or that Slurm may place on two blocks.

    Its key is empty if it concerns the option itself: the caller knows which table contains it.
    """
    wide = -(-group.ranks // ranks_per_node)
    fact = f"{group.option} makes groups of {group.ranks} ranks on {wide} nodes"
    if wide > topology.largest:
        problem = f"{fact}, and the largest {topology.kind} of the cluster has {topology.largest}"
        yield Fault(key="", problem=problem, hint=f"at most {topology.largest * ranks_per_node} ranks in a group")
    elif topology.kind == "block" and nodes > topology.largest and (segment is None or segment % wide):
        problem = (
            f"{fact}, and Slurm may put one on two blocks: {nodes} nodes are more than a block's {topology.largest}"
        )
        yield Fault(key="resources.segment", problem=problem, hint=f"segment = {wide}")


def largest_group(words: Sequence[str]) -> ParallelGroup | None:
    """The largest group that a program's options ask for; None if they ask for none."""
    values = _values(words)
    tensor = [ParallelGroup(option=option, ranks=values[option]) for option in _TENSOR if option in values]
    split = values.get(_EXPERT_TENSOR, tensor[0].ranks if tensor else 1)
    experts = [
        ParallelGroup(option=option, ranks=values[option] * (split if option == _EXPERT[0] else 1))
        for option in _EXPERT
        if values.get(option, 1) > 1
    ]
    return max((*tensor, *experts), key=lambda group: group.ranks, default=None)


def ask(*, env: Mapping[str, str]) -> Topology | None:
    """The cluster's topology; None if it has none, or if scontrol does not answer."""
    try:
        return parse(
            run_local_or_ssh.run(["scontrol", "show", "topology"], env=env, timeout=_TIMEOUT_S, check=False).stdout
        )
    except ToolError:
        return None


def parse(text: str) -> Topology | None:
    """Parse the output of `scontrol show topology`. Higher levels (blocks of blocks, switches of switches) are ignored."""
    lines = _LINE.findall(text)
    if not lines:
        return None
    kind = "block" if lines[0][0].startswith("BlockName") else "leaf switch"
    return Topology(kind=kind, largest=max(count(nodes) for _, nodes in lines))


def count(hosts: str) -> int:
    """The number of hosts in one of Slurm's expressions: `a[1-2,05],b` has four."""
    names = re.findall(r"(?:\[[^]]*\]|[^,[])+", hosts)
    return sum(prod(map(_numbers, re.findall(r"\[([^]]*)\]", name))) for name in names)


def _numbers(ranges: str) -> int:
    bounds = [one.split("-") for one in ranges.split(",")]
    return sum(int(pair[-1]) - int(pair[0]) + 1 for pair in bounds)


def _values(words: Sequence[str]) -> dict[str, int]:
    """Option -> its integer, from `--option 8` or `--option=8`; the last one counts."""
    found = {}
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        option, _, value = word.partition("=")
        if option.startswith("--") and (value or following).isdecimal():
            found[option.replace("_", "-")] = int(value or following)
    return found
