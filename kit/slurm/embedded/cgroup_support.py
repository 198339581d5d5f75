"""`kit cluster up --cgroups`: checks whether Slurm can track processes by cgroups here, and removes leftover cgroups.

Slurm's cgroup/v2 works only without v1 hierarchies: otherwise slurmd ends with "Hybrid mode is not supported".
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from kit.errors import ToolError

MOUNT = Path("/sys/fs/cgroup")
_SLICE = MOUNT / "system.slice"
_HINT = "leave out --cgroups: Slurm then follows processes by their parents"


def require() -> None:
    """ToolError that says what this machine lacks for --cgroups."""
    own, mounts = (
        Path("/proc/self/cgroup").read_text(encoding="utf-8"),
        Path("/proc/self/mounts").read_text(encoding="utf-8"),
    )
    problem = missing(root=os.geteuid() == 0, own=own, mounts=mounts, systemd=_SLICE.is_dir())
    if problem:
        raise ToolError(f"--cgroups: {problem}", hint=_HINT)


def missing(*, root: bool, own: str, mounts: str, systemd: bool) -> str | None:
    """The missing requirement; None if there is none.

    own: text of /proc/self/cgroup, cgroups(7). mounts: text of /proc/self/mounts, fstab(5). systemd: whether system.slice exists.
    """
    if not root:
        return "only root may make cgroups"
    # number:controllers:path, one line for each hierarchy; the line for v2 is 0::path.
    names = [line.split(":", 2)[1] for line in own.splitlines()]
    if older := sorted(name for name in names if name):
        return f"Slurm needs cgroup v2 alone, and this machine has v1 as well: {', '.join(older)}"
    options = next(
        (words[3] for words in map(str.split, mounts.splitlines()) if words[1:3] == [str(MOUNT), "cgroup2"]), ""
    )
    if not options:
        return f"no cgroup2 is mounted at {MOUNT}"
    if "rw" not in options.split(","):
        return f"{MOUNT} is mounted read-only, as in most containers"
    if not systemd:
        return f"no {_SLICE}, where slurmd makes its cgroups: this machine was not started by systemd"
    return None


def remove(nodes: Iterable[str], *, below: Path = MOUNT) -> None:
    """Remove the cgroups that each node's slurmd made. They have no processes left; inner ones must be removed first."""
    for node in nodes:
        for scope in list(below.rglob(f"{node}_slurmstepd.scope")):
            for folder, _, _ in os.walk(scope, topdown=False):
                Path(folder).rmdir()
