"""Chooses the GPU devices of each node: the machine's own, or placeholders.

Slurm 22.05 reports GRES without `File=` as 0 and drains the node, so a placeholder must also be a file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from kit.errors import UsageError

PLACEHOLDERS_PER_NODE = 4


def real_devices(dev: Path = Path("/dev")) -> tuple[Path, ...]:
    """The machine's GPUs, in the driver's order."""
    found = {int(m[1]): path for path in dev.iterdir() if (m := re.fullmatch(r"nvidia(\d+)", path.name))}
    return tuple(found[number] for number in sorted(found))


def deal(devices: Sequence[Path], *, nodes: int, per_node: int | None) -> tuple[tuple[Path, ...], ...]:
    """Divide the real devices among the nodes in turn. Nodes share devices if there are too few.

    per_node None uses all devices, at least one for each node. A node cannot have one device twice: UsageError.
    """
    count = max(1, len(devices) // nodes) if per_node is None else per_node
    if count > len(devices):
        raise UsageError(
            f"--gpus-per-node {count}: this machine has {len(devices)} GPU(s)",
            hint="ask for fewer, or for devices that are only names: --placeholder-gpus",
        )
    shares = (sorted((node * count + index) % len(devices) for index in range(count)) for node in range(nodes))
    return tuple(tuple(devices[number] for number in share) for share in shares)


def shared(shares: Sequence[Sequence[Path]]) -> bool:
    """Whether two nodes offer the same device."""
    offered = [device for share in shares for device in share]
    return len(set(offered)) < len(offered)


def placeholders(folder: Path, count: int) -> tuple[Path, ...]:
    """Paths of `count` placeholder devices in `folder`."""
    return tuple(folder / f"gpu{number}" for number in range(count))


def make_placeholders(paths: Sequence[Path]) -> None:
    """Make placeholder files: null devices or, if mknod(2) is not allowed, links to /dev/null."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            path.symlink_to("/dev/null")
