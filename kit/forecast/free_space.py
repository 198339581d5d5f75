"""Free space and quota of the checkpoint folder."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kit import shell
from kit.errors import ToolError

# A submit must not wait for a file server that does not answer.
_TIMEOUT_S = 2.0
_KIB = 1024


@dataclass(frozen=True, kw_only=True)
class Room:
    """Bytes that this user can still write. by: the limit, in words."""

    free: int
    by: str


def under(folder: Path, *, env: Mapping[str, str]) -> Room | None:
    """The free space at `folder`, which may not exist yet; None if it is unknown."""
    existing_folder = next((parent for parent in (folder, *folder.parents) if parent.is_dir()), None)
    if existing_folder is None:
        return None
    try:
        found = os.statvfs(existing_folder)
    except OSError:
        return None
    rooms = [Room(free=found.f_bavail * found.f_frsize, by="free"), *_quotas(existing_folder, env)]
    return min(rooms, key=lambda room: room.free)


def _quotas(place: Path, env: Mapping[str, str]) -> list[Room]:
    """The room left by the user's quota on the file system of `place`: disk quotas, including NFS's, and Lustre's."""
    kind, mount = _mounted(place)
    if kind == "lustre" and shutil.which("lfs"):
        said = _asked(["lfs", "quota", "-q", "-u", str(os.getuid()), str(place)], env)
    elif shutil.which("quota") and kind not in {"tmpfs", "overlay", ""}:
        said = _asked(["quota", "--no-wrap", "--raw-grace", "--show-mntpoint", "--user", "--no-mixed-pathnames"], env)
    else:
        return []
    return [Room(free=left, by="left of the quota") for left in left_of(said, mount)]


def left_of(said: str, mount: str) -> list[int]:
    """Bytes left at a mount point, from the output of `quota` or `lfs quota`. Its line has used, soft and hard limit in KiB."""
    bytes_left = []
    for line in said.splitlines():
        if mount not in line.split():
            continue
        numbers = re.findall(r"(?<=\s)(\d+)\*?(?=\s|$)", line[line.index(mount) + len(mount) :])
        if len(numbers) >= 3:
            used, soft, hard = map(int, numbers[:3])
            if limit := hard or soft:
                bytes_left.append(max(0, limit - used) * _KIB)
    return bytes_left


def _asked(argv: list[str], env: Mapping[str, str]) -> str:
    try:
        # `quota` exits with 1 if the user is over a limit.
        return shell.run(argv, env={**env, "LC_ALL": "C"}, timeout=_TIMEOUT_S, check=False).stdout
    except ToolError:
        return ""


def _mounted(place: Path) -> tuple[str, str]:
    """Type and mount point of a folder's file system."""
    path, best = str(place.resolve()), ("", "")
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return best
    for line in lines:
        _, point, kind, *_ = line.split()
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best[1]):
            best = (kind, point)
    return best
