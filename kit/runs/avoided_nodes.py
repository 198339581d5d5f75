"""Nodes that failed a preflight, or that a user named. They are recorded for a day next to the runs, and every submit avoids them.

`kit nodes` shows them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kit.errors import RunError
from kit.planning.batch_file import AVOID_DIR
from kit.runs import atomic_write
from kit.runs.remote_clusters import RemoteCluster

MEMORY_S = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class Avoided:
    """An avoided node. since: the time of the record. reason: the message of its preflight, or the user who named it."""

    node: str
    since: datetime
    reason: str


def read(runs_dir: Path) -> list[Avoided]:
    """Nodes that were recorded within the last day, sorted. Older entries are removed."""
    folder = runs_dir / AVOID_DIR
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.startswith("."):
            continue  # an entry that is being written
        since = path.stat().st_mtime
        if time.time() - since > MEMORY_S:
            path.unlink(missing_ok=True)
            continue
        reason = path.read_text(encoding="utf-8", errors="replace").strip()
        found.append(Avoided(node=path.name, since=datetime.fromtimestamp(since, UTC), reason=reason))
    return found


def add(runs_dir: Path, node: str, reason: str) -> None:
    """Make new jobs avoid `node` for a day."""
    (runs_dir / AVOID_DIR).mkdir(parents=True, exist_ok=True)
    atomic_write.write(runs_dir / AVOID_DIR / node, f"{reason}\n")


def forget(runs_dir: Path, node: str) -> None:
    """Let jobs run on `node` again; RunError when it is not avoided."""
    known = {one.node for one in read(runs_dir)}
    if node not in known:
        raise RunError(f"{node}: not among the avoided nodes: {', '.join(sorted(known)) or 'there are none'}")
    (runs_dir / AVOID_DIR / node).unlink(missing_ok=True)


def read_over_ssh(cluster: RemoteCluster) -> list[Avoided]:
    """The avoided nodes of a cluster over ssh, in one request."""
    found = cluster.refresh(plan=True).avoid
    nodes = [Avoided(node=n.node, since=datetime.fromtimestamp(n.since, UTC), reason=n.reason) for n in found]
    return sorted(nodes, key=lambda one: one.node)


def forget_over_ssh(cluster: RemoteCluster, node: str) -> None:
    """Let jobs run on `node` of a cluster over ssh again."""
    known = {one.node for one in read_over_ssh(cluster)}
    if node not in known:
        raise RunError(f"{node}: not among the avoided nodes: {', '.join(sorted(known)) or 'there are none'}")
    assert cluster.asked is not None
    place = f"{cluster.asked.there.runs}/{AVOID_DIR}/{node}"
    cluster.connection.run(["rm", "-f", "--", place], env={}, text=None, timeout=None, check=True)
