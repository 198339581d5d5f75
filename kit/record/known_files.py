"""Caches the facts that listing runs needs from the project's cluster files and from an embedded cluster's record.

Reading one of these files needs pydantic, and its import takes longer than the rest of `kit status`. The cache is one file in the
user's cache folder, which may be deleted at any time. A cached fact is used while inode, size and time of its file, and the version
of the kit, stay the same.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kit.files import untrusted_files
from kit.record import cache_files
from kit.version import __version__

# Seconds. A file that changed more recently may change again without a new time: the clock of NFS ticks once a second.
_SETTLED_S = 2.0
# The most files in the cache. Entries of deleted files are removed first.
_MOST = 200
# The code that reads the files. In a checkout it changes without a new version of the kit.
_READERS = ("schema/cluster.py", "schema/schema_base.py", "slurm/embedded/cluster_record.py", "record/known_files.py")

_Facts = list[Any]


class KnownCluster(NamedTuple):
    """Facts from a cluster's file. ssh: whether the cluster is reached over ssh; runs: `paths.runs`, with its placeholders."""

    ssh: bool
    embedded: bool
    runs: str


class KnownRecord(NamedTuple):
    """Facts from an embedded cluster's record. boot_id: the boot of the machine in which it was written."""

    phase: str
    boot_id: str
    slurm_conf: str


def cluster(path: Path) -> KnownCluster:
    """The facts from a cluster's file. ConfigError with all faults of the file."""

    def read() -> _Facts:
        from kit import config
        from kit.schema.cluster import Cluster

        rules = config.load_model(path, Cluster)
        return [rules.ssh is not None, rules.embedded, rules.paths.runs]

    return KnownCluster(*_facts(path, read, (bool, bool, str)))


def embedded_conf(name: str) -> Path | None:
    """slurm.conf of the embedded cluster of this name; None if its record says that it is not up in this boot."""
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
    """The facts of a file: from the cache if the file has not changed, else from `read`."""
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
    """Inode, size and time of a file; empty if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return []
    return [found.st_ino, found.st_size, found.st_mtime_ns]


def _form() -> list[Any]:
    """The version and code that read the files. If either differs, the cache is not used."""
    here = Path(__file__).parents[1]
    return [__version__, *(_signature(here / name) for name in _READERS)]


def _place() -> Path:
    """The cache file of this kit. Another kit of the same user, such as one in a checkout, has its own file."""
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
