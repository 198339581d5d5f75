"""Nodes that failed a preflight: remembered for a day beside the runs, and avoided by every submit. `kit nodes` shows them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kit.errors import RunError
from kit.planning.batch_file import AVOID_DIR

MEMORY_S = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class Avoided:
    """A node, when it failed, and what its preflight said."""

    node: str
    since: datetime
    reason: str


def read(runs_dir: Path) -> list[Avoided]:
    """Nodes that failed within the last day, by name. Older entries are removed."""
    folder = runs_dir / AVOID_DIR
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        since = path.stat().st_mtime
        if time.time() - since > MEMORY_S:
            path.unlink(missing_ok=True)
            continue
        reason = path.read_text(encoding="utf-8", errors="replace").strip()
        found.append(Avoided(node=path.name, since=datetime.fromtimestamp(since, UTC), reason=reason))
    return found


def forget(runs_dir: Path, node: str) -> None:
    """Let jobs run on `node` again; RunError when it is not avoided."""
    known = {one.node for one in read(runs_dir)}
    if node not in known:
        raise RunError(f"{node}: not among the avoided nodes: {', '.join(sorted(known)) or 'there are none'}")
    (runs_dir / AVOID_DIR / node).unlink(missing_ok=True)
