"""Keeps what listing runs needs of the project's cluster files and of an embedded cluster's record, while the files do not change.

Reading one of them takes pydantic, whose import takes longer than all else that `kit status` does. A cache and nothing more: one
file in the user's own cache folder, which may be deleted at any time. A fact counts while inode, size and time of its file, and the
kit that read it, are as they were.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kit import __version__, untrusted_files
from kit.runs import cache_files

# A file that changed so recently, in seconds, may change again within one tick of its clock (of NFS, a second).
_SETTLED_S = 2.0
# The most files that are kept; those that are gone leave first.
_MOST = 200
# What decides how a file is read, besides the kit's version: in a checkout these change without one.
_READERS = ("spec/cluster.py", "spec/schema_base.py", "slurm/embedded/cluster_record.py", "runs/known_files.py")

_Facts = list[Any]


class KnownCluster(NamedTuple):
    """A cluster's file. ssh: whether it is reached so; runs: `paths.runs`, with its placeholders."""

    ssh: bool
    embedded: bool
    runs: str


class KnownRecord(NamedTuple):
    """An embedded cluster's record, of the boot with this id."""

    phase: str
    boot_id: str
    slurm_conf: str


def cluster(path: Path) -> KnownCluster:
    """What a cluster's file says; ConfigError with all its faults, as config.load_model has it."""

    def read() -> _Facts:
        from kit import config
        from kit.spec.cluster import Cluster

        rules = config.load_model(path, Cluster)
        return [rules.ssh is not None, rules.embedded, rules.paths.runs]

    return KnownCluster(*_facts(path, read, (bool, bool, str)))


def embedded_conf(name: str) -> Path | None:
    """slurm.conf of the embedded cluster of this name; None where it was not up when last seen, as embedded.find has it."""
    from kit.errors import UsageError
    from kit.slurm.embedded import find_cluster

    try:
        layout = find_cluster.layout_of(name, None)
        layout.record.stat()
    except (UsageError, FileNotFoundError, NotADirectoryError):
        return None

    def read() -> _Facts:
        from kit.slurm.embedded.cluster_record import EmbeddedCluster

        found = EmbeddedCluster.load(layout)
        return [found.phase, found.boot_id, str(found.slurm_conf)] if found else ["", "", ""]

    record = KnownRecord(*_facts(layout.record, read, (str, str, str)))
    return Path(record.slurm_conf) if record.phase == "up" and record.boot_id == find_cluster.this_boot() else None


def _facts(path: Path, read: Callable[[], _Facts], kinds: tuple[type, ...]) -> _Facts:
    """The facts of a file: those that are kept while it is as it was, else what `read` says now."""
    seen = _signature(path)
    key = str(path)
    table = _load()
    entry = table.get(key)
    if seen and isinstance(entry, list) and len(entry) == 2 and entry[0] == seen and _are(entry[1], kinds):
        return list(entry[1])
    found = read()
    if seen and time.time() - seen[2] / 1e9 > _SETTLED_S and _signature(path) == seen:
        _store({**table, key: [seen, found]})
    return found


def _are(values: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(values, list) and [type(one) for one in values] == list(kinds)


def _signature(path: Path) -> list[int]:
    """Inode, size and time; empty where there is nothing to look at."""
    try:
        found = path.stat()
    except OSError:
        return []
    return [found.st_ino, found.st_size, found.st_mtime_ns]


def _form() -> list[Any]:
    """What read the files: another kit reads them anew."""
    here = Path(__file__).parents[1]
    return [__version__, *(_signature(here / name) for name in _READERS)]


def _place() -> Path:
    """Another kit of the same user, such as one in a checkout, has a file of its own: neither writes over the other's."""
    return cache_files.place("clusters", __file__)


def _load() -> dict[str, Any]:
    try:
        table = json.loads(untrusted_files.read_bytes(_place()))
        entries = table["files"] if table["form"] == _form() else {}
        return entries if isinstance(entries, dict) else {}
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return {}


def _store(entries: dict[str, Any]) -> None:
    if len(entries) > _MOST:
        entries = {path: entry for path, entry in entries.items() if os.path.exists(path)}  # noqa: PTH110
        entries = dict([*entries.items()][-_MOST:])
    cache_files.write(_place(), json.dumps({"form": _form(), "files": entries}, separators=(",", ":")))
