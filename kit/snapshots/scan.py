"""Reads a workspace into its tree. Files that did not change since the last scan are not read again."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import ConfigError, Fault
from kit.files import untrusted_files
from kit.snapshots import chosen_files, tree_listing
from kit.snapshots.chosen_files import Chosen
from kit.snapshots.tree_listing import ListedFile, Listing

MOST_BYTES_OF_A_FILE = 50_000_000
MOST_BYTES = 500_000_000
# File times may be this coarse. A file that changed within this time before it was read is read again at the next scan.
_COARSEST_NS = 2_000_000_000
_TRIES = 3
_NAMED = 5
_FORM = 1

# Path -> the file's lstat signature, and its sha256.
Known = dict[str, list[Any]]


@dataclass(frozen=True, kw_only=True)
class Scan:
    """A workspace that was read. sizes: bytes of each file. by_git, added, passed, without: as in Chosen.

    known: the cache for the next scan. news: whether the cache changed. outward: links that lead out of the workspace, as 'path ->
    target'.
    """

    folder: Path
    tree: Listing
    sizes: dict[str, int]
    known: Known
    news: bool
    by_git: bool
    added: tuple[str, ...]
    passed: tuple[str, ...]
    without: tuple[str, ...]
    outward: tuple[str, ...]

    @property
    def total(self) -> int:
        """The size of all files, in bytes."""
        return sum(self.sizes.values())


def scan(
    folder: Path, *, index: Path, without: Collection[Path] = (), rules: Sequence[str] = (), asked_by: str
) -> Scan:
    """Scan the workspace in `folder`; nothing is written. index: the cache of an earlier scan, if it exists. The others: see
    `choose`.

    ConfigError, with all names, for files that are too large, that cannot be read, or that change while they are read.
    """
    chosen = chosen_files.choose(folder, without=without, rules=rules, asked_by=asked_by)
    _check_sizes(folder, chosen, asked_by)
    known, fresh = _load(index, folder), Known()
    entries, outward, faults = [], [], []
    for path, seen in chosen.files.items():
        if stat.S_ISLNK(seen.st_mode):
            target, leaves = _target(folder, path)
            entries.append(ListedFile(path, "link", target))
            outward += [f"{path} -> {target}"] if leaves else []
            continue
        try:
            digest, read = _digest(f"{folder}/{path}", seen, known.get(path))
        except _Unsteady:
            faults.append(_fault(path, "changes while it is read", asked_by, "stop what writes it, or"))
            continue
        except OSError as error:
            faults.append(_fault(path, f"cannot be read: {error.strerror}", asked_by, f"chmod u+r {path}, or"))
            continue
        if read.st_ctime_ns + _COARSEST_NS < time.time_ns():
            fresh[path] = [*_signature(read), digest]
        entries.append(ListedFile(path, "program" if read.st_mode & stat.S_IXUSR else "file", digest))
    if faults:
        raise ConfigError.of(*faults)
    return Scan(
        folder=folder,
        tree=tree_listing.make_listing(entries),
        sizes={path: seen.st_size for path, seen in chosen.files.items() if stat.S_ISREG(seen.st_mode)},
        known=fresh,
        news=fresh != known,
        by_git=chosen.by_git,
        added=chosen.added,
        passed=chosen.passed,
        without=chosen.without,
        outward=tuple(outward),
    )


def index_text(done: Scan) -> str:
    """The text of the cache for the next scan of the same folder; pass its file as `index`."""
    return json.dumps({"form": _FORM, "folder": str(done.folder), "files": done.known}, separators=(",", ":"))


def index_name(folder: Path) -> str:
    """The file name of a folder's cache."""
    return f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}.json"


def _check_sizes(folder: Path, chosen: Chosen, asked_by: str) -> None:
    sizes = {path: seen.st_size for path, seen in chosen.files.items() if stat.S_ISREG(seen.st_mode)}
    large = sorted(((size, path) for path, size in sizes.items() if size > MOST_BYTES_OF_A_FILE), reverse=True)
    if large:
        problem = f"a run takes its workspace with it, and files over {MOST_BYTES_OF_A_FILE // 10**6} MB are data: "
        problem += _named(large)
    elif (total := sum(sizes.values())) > MOST_BYTES:
        most = MOST_BYTES // 10**6
        problem = f"{folder} has {total // 10**6} MB, and a run takes {most} MB with it at most; the largest: "
        problem += _named(sorted(((size, path) for path, size in sizes.items()), reverse=True))
        large = [max((size, path) for path, size in sizes.items())]
    else:
        return
    first = large[0][1]
    ignore = ".gitignore" if chosen.by_git else chosen_files.IGNORE_FILE
    data, _, _ = first.rpartition("/")
    source = data or first
    hint = (
        f'mounts = [{{ source = "{source}", target = "/workspace/{source}" }}]: what is mounted is not part of it; '
        f"or name it in {folder / ignore}; or snapshot = false"
    )
    raise ConfigError.of(Fault(file=asked_by, key="snapshot", problem=problem, hint=hint))


def _named(sizes: list[tuple[int, str]]) -> str:
    more = f" and {len(sizes) - _NAMED} more" if len(sizes) > _NAMED else ""
    return ", ".join(f"{path} ({size // 10**6} MB)" for size, path in sizes[:_NAMED]) + more


def _fault(path: str, what: str, asked_by: str, instead: str) -> Fault:
    hint = f"{instead} name it in {chosen_files.IGNORE_FILE}; or snapshot = false"
    return Fault(file=asked_by, key="snapshot", problem=f"{path} {what}", hint=hint)


def _target(folder: Path, path: str) -> tuple[str, bool]:
    """The target of a link, and whether it is outside the workspace. Such a target is made absolute, so that it works in a copy."""
    target = os.readlink(f"{folder}/{path}")  # noqa: PTH115
    if target.startswith("/"):
        return target, True
    whole = os.path.normpath(f"{folder}/{path}/../{target}")
    leaves = not f"{whole}/".startswith(f"{folder}/")
    return (whole if leaves else target), leaves


class _Unsteady(Exception):  # noqa: N818
    """A file changed during every attempt to read it."""


def _digest(path: str, seen: os.stat_result, before: list[Any] | None) -> tuple[str, os.stat_result]:
    """The file's sha256, and its lstat signature while it was computed."""
    if before is not None and before[:-1] == _signature(seen):
        return str(before[-1]), seen
    for _ in range(_TRIES):
        with untrusted_files.open_regular(Path(path)) as source:
            start = os.fstat(source.fileno())
            digest = hashlib.sha256(source.read(MOST_BYTES_OF_A_FILE + 1)).hexdigest()
            end = os.fstat(source.fileno())
        if _signature(start) == _signature(end):
            return digest, end
    raise _Unsteady


def _signature(seen: os.stat_result) -> list[int]:
    return [seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns]


def _load(index: Path, folder: Path) -> Known:
    """Read the cache; empty if the file is missing or is not one of `index_text`."""
    try:
        table = json.loads(untrusted_files.read_bytes(index))
        known = table["files"] if table["form"] == _FORM and table["folder"] == str(folder) else {}
        return {path: one for path, one in known.items() if len(one) == 6 and isinstance(one[-1], str)}
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}
