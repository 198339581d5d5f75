"""Slurm's short forms: lists of nodes, and generic resources (gres)."""

from __future__ import annotations

import re


def count_gpus(gres: str) -> int:
    """The number of GPUs: `gpu:h100:8(S:0-1),nvme:1` -> 8."""
    return sum(int(count) for count in re.findall(r"(?:^|,)gpu(?::[^:,(]+)*?:(\d+)(?=\(|,|$)", gres))


def expand_nodes(text: str) -> tuple[str, ...]:
    """The hosts of Slurm's short form: `a[1-2,05],b` is a1, a2, a05, b."""
    return tuple(name for one in re.findall(r"(?:\[[^]]*\]|[^,[])+", text) for name in _spread(one))


def _spread(name: str) -> list[str]:
    head, bracket, rest = name.partition("[")
    if not bracket:
        return [name]
    ranges, _, tail = rest.partition("]")
    names = []
    for one in ranges.split(","):
        first, _, last = one.partition("-")
        names += [
            f"{head}{n:0{len(first)}}{end}" for n in range(int(first), int(last or first) + 1) for end in _spread(tail)
        ]
    return names
