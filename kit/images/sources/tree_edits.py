"""Edits of an image's tree for its .sqsh, described as data. Every way of squashing applies the same edits.

The rules follow what an engine's own container of the image shows, so that its export, its mounted layers and the kit's own merge
of the layers give the same bytes (docs/guides/images.md has the table).
"""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal, NamedTuple

# Device nodes cannot be made by an ordinary user. The other files are leftovers of an engine in its exported containers.
ALWAYS_DROPPED = ("dev/*", "proc/*", "sys/*", ".dockerenv", "run/.containerenv")

# Files that differ between two builds of one Dockerfile and have no use in a container: logs, caches, backups of dpkg and useradd,
# and the machine's identity.
BUILD_NOISE = (
    "tmp/*",
    "var/tmp/*",
    "var/log/*.log",
    "var/log/apt/*",
    "var/cache/apt/*",
    "var/cache/debconf/*-old",
    "var/cache/ldconfig/*",
    "var/lib/apt/lists/*",
    "var/lib/dpkg/*-old",
    "var/lib/systemd/random-seed",
    "etc/*-",
    "etc/.pwd.lock",
    "etc/machine-id",
    "var/lib/dbus/machine-id",
    "root/.cache",
)

# An engine puts its own layer over every container. In that layer these are real folders with this mode, whatever the image has.
ENGINE_FOLDERS = ("dev", "etc", "proc", "sys")
FOLDER_MODE = 0o755

# Docker's export keeps only this attribute. Attributes from a file system (SELinux) or a user have no meaning on another machine.
_XATTR = "SCHILY.xattr."
KEPT_XATTRS = frozenset({"security.capability"})
_ACLS = ("SCHILY.acl.", f"{_XATTR}system.posix_acl_")

# squashfs stores seconds as unsigned 32-bit numbers.
LATEST = (1 << 32) - 1

_OWNER_ALL, _OWNER_READ, _ANY_LINK = 0o700, 0o400, 0o777
_MAX_LINKS = 40  # the kernel's limit (path_resolution(7))


@dataclass(frozen=True, kw_only=True)
class Addition:
    """A file, folder or symbolic link to add to the .sqsh.

    path: without a leading slash. A file (content) or link (target) replaces what the image has at the path. A folder is made only
    if the image has nothing there; `ENGINE_FOLDERS` are always made. follows: whether links of the image in the path are followed
    (see `settled`).
    """

    path: str
    mode: int
    content: bytes | None = None
    target: str | None = None
    follows: bool = False

    @property
    def key(self) -> bytes:
        """Sort key for the order in which a tree is walked."""
        return walk_key(self.path)

    @property
    def replaces(self) -> bool:
        """Whether this addition replaces an entry of the image at the same path."""
        return self.content is not None or self.target is not None or self.path in ENGINE_FOLDERS


class Seen(NamedTuple):
    """The entry of an image at a path. target: of a link."""

    kind: Literal["folder", "link", "other"]
    target: str = ""


Look = Callable[[str], Seen | None]


@dataclass(frozen=True, kw_only=True)
class Edit:
    """All changes to a tree: additions in walk order, and glob patterns of paths to drop (`*` stops at a slash)."""

    additions: tuple[Addition, ...]
    dropped: tuple[str, ...]

    def drops(self, path: str) -> bool:
        """Whether the image's entry at `path` (no leading slash) is dropped: a pattern matches, or an addition replaces it."""
        return self._matches(path, self._replaced) or self.covers(path)

    def covers(self, path: str) -> bool:
        """Whether a pattern drops `path` or a folder above it; then nothing is added there either."""
        return self._matches(path, self._patterns)

    @cached_property
    def _patterns(self) -> dict[str, list[list[str]]]:
        return _by_first(self.dropped)

    @cached_property
    def _replaced(self) -> dict[str, list[list[str]]]:
        return _by_first(a.path for a in self.additions if a.replaces and a.path not in ENGINE_FOLDERS)

    @staticmethod
    def _matches(path: str, table: dict[str, list[list[str]]]) -> bool:
        first = path.partition("/")[0]
        if first not in table:
            return False
        parts = path.split("/")
        return any(len(p) <= len(parts) and all(map(fnmatchcase, parts, p)) for p in table[first])


def _by_first(patterns: Iterable[str]) -> dict[str, list[list[str]]]:
    """Patterns by first component, which is never a glob. This makes the lookup fast for tens of thousands of paths."""
    table: dict[str, list[list[str]]] = {}
    for pattern in patterns:
        parts = pattern.split("/")
        table.setdefault(parts[0], []).append(parts)
    return table


def walk_key(path: str) -> bytes:
    """Sort key that gives the order of a walk in byte order, as in mksquashfs and in an engine's export.

    Names hold no NUL, and nothing sorts before it, so a folder's content follows the folder immediately.
    """
    return path.replace("/", "\0").encode(errors="surrogateescape")


def clean(name: str) -> str:
    """A member's name as a path without leading `/` or `./`; empty for the root. ValueError for a path outside the root."""
    if "." not in name and "//" not in name:
        return name.strip("/")
    path = posixpath.normpath(name).lstrip("/")
    if path == ".." or path.startswith("../"):
        raise ValueError(f"{name}: leads out of the image")
    return "" if path == "." else path


def normalise(member: tarfile.TarInfo, name: str) -> None:
    """Change a member to the form that every way writes: owned by root, readable, with only the kept attributes."""
    member.name = name
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = min(max(int(member.mtime // 1), 0), LATEST)
    if member.isdir():
        member.mode |= _OWNER_ALL
        member.size = 0
    elif member.issym():
        member.mode = _ANY_LINK
    else:
        member.mode |= _OWNER_READ
    if member.isreg():
        member.type = tarfile.REGTYPE  # the data of a sparse file come with their holes filled in
        member.pax_headers = {key: member.pax_headers[key] for key in member.pax_headers if is_kept(key)}
    else:
        member.pax_headers = {}


def has_acl(member: tarfile.TarInfo) -> bool:
    """Whether a member has an access control list, as GNU tar, star and bsdtar write it."""
    return any(header.startswith(_ACLS) for header in member.pax_headers)


def is_kept(header: str) -> bool:
    """Whether a PAX header carries an extended attribute that is kept."""
    return header.startswith(_XATTR) and header.removeprefix(_XATTR) in KEPT_XATTRS


def settled(edit: Edit, look: Look) -> Edit:
    """The edit with the links in its added folders' paths resolved, as an engine does for a working directory.

    look: returns what the image has at a path whose parents are real folders. The kit's own files and links need no resolving: they
    are in `ENGINE_FOLDERS`, which are real folders.
    """
    additions = {a.path: a for a in edit.additions if a.replaces and not edit.covers(a.path)}
    for addition in edit.additions:
        if not addition.replaces:
            missing = (
                _missing(addition.path, look, frozenset(additions))
                if addition.follows
                else _nothing(addition.path, look)
            )
            for place in missing:
                if not edit.covers(place):
                    additions.setdefault(place, replace(addition, path=place))
    return replace(edit, additions=tuple(sorted(additions.values(), key=lambda a: a.key)))


def _nothing(path: str, look: Look) -> list[str]:
    return [] if look(path) else [path]


def _missing(path: str, look: Look, added: frozenset[str]) -> list[str]:
    """The folders to make so that `path` becomes a folder, outermost first; empty when a file is in the way."""
    missing: list[str] = []
    left, folder, links = path.split("/"), "", 0
    while left:
        part = left.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            folder = posixpath.dirname(folder)
            continue
        inner = f"{folder}/{part}" if folder else part
        seen = Seen("folder") if inner in added or inner in ENGINE_FOLDERS else look(inner)
        if seen is None:
            missing.append(inner)
        elif seen.kind == "link":
            links += 1
            left = [*seen.target.split("/"), *left]
            folder = "" if seen.target.startswith("/") else folder
            if links > _MAX_LINKS:
                return []
            continue
        elif seen.kind == "other":
            return []
        folder = inner
    return missing
