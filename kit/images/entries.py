"""Edits a tar stream on its way into mksquashfs: nothing is unpacked, and no root is needed."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator
from typing import IO

from kit.images.enroot_layout import Addition, Edit, walk_key

_BLOCK = 1 << 20
ENCODING, ERRORS = "utf-8", "surrogateescape"
_OWNER_ALL = 0o700
_OWNER_READ = 0o400
_XATTR = "SCHILY.xattr."


Entry = tuple[tarfile.TarInfo, IO[bytes] | None]


def parsed(chunks: Iterable[bytes]) -> Iterator[Entry]:
    """The members of the tar in `chunks`, each with its data if it has any, to be read before the next is asked for."""
    source = tarfile.open(  # noqa: SIM115 - a stream has no file to close
        fileobj=_Source(chunks), mode="r|", bufsize=_BLOCK, encoding=ENCODING, errors=ERRORS
    )
    while (member := source.next()) is not None:
        source.members = []  # type: ignore[attr-defined]  # it remembers every member; a stream has no use for them
        yield member, source.extractfile(member) if member.isreg() else None


def edited(members: Iterable[Entry], edit: Edit) -> Iterator[bytes]:
    """A tar of the members with `edit` applied.

    The members come in walk order, as an engine exports them and `layer_tree.merged` yields them. Additions are put where the
    walk would meet them, so that mksquashfs writes the same bytes from this stream as from the tree itself.
    """
    waiting = list(edit.additions)
    folders = {addition.path for addition in waiting if not addition.replaces}
    seen: dict[str, bool] = {}
    for member, data in members:
        name = clean(member.name)
        while waiting and waiting[0].key < walk_key(name):
            yield from _added(waiting.pop(0), seen)
        if not name or edit.drops(name):
            continue
        seen[name] = member.isdir()
        if member.isdir() and name in folders:
            member.mtime = 0
        yield from _entry(_normalised(member, name), data)
    for addition in waiting:
        yield from _added(addition, seen)
    yield bytes(2 * tarfile.BLOCKSIZE)


def clean(name: str) -> str:
    """A member's name as a path without leading `/` or `./`; empty for the root."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _normalised(member: tarfile.TarInfo, name: str) -> tarfile.TarInfo:
    """The member with modes that an ordinary user can unpack and remove again."""
    member.name = name
    member.mode |= _OWNER_ALL if member.isdir() else _OWNER_READ
    if member.islnk():
        member.linkname = clean(member.linkname)
    return member


def _entry(member: tarfile.TarInfo, data: IO[bytes] | None) -> Iterator[bytes]:
    yield from _xattrs(member)
    # GNU headers: mksquashfs 4.5 loses the leading slash of a link target that stands in a PAX header.
    yield member.tobuf(tarfile.GNU_FORMAT, ENCODING, ERRORS)
    if data is not None:
        while chunk := data.read(_BLOCK):
            yield chunk
        yield bytes(-member.size % tarfile.BLOCKSIZE)


def _xattrs(member: tarfile.TarInfo) -> Iterator[bytes]:
    """A PAX header with nothing but the member's extended attributes, such as file capabilities."""
    records = b"".join(_pax_record(key, value) for key, value in member.pax_headers.items() if key.startswith(_XATTR))
    if records:
        header = tarfile.TarInfo("xattrs")
        header.type, header.size = tarfile.XHDTYPE, len(records)
        yield from _entry(header, io.BytesIO(records))


def _pax_record(key: str, value: str) -> bytes:
    """`<length> <key>=<value>` and a newline, the length counting itself (pax(1), "pax Extended Header")."""
    body = f" {key}=".encode() + value.encode(errors=ERRORS) + b"\n"
    length = len(body)
    while length != len(str(length)) + len(body):
        length = len(str(length)) + len(body)
    return str(length).encode() + body


def _added(addition: Addition, seen: dict[str, bool]) -> Iterator[bytes]:
    """One addition. A folder only where the image has nothing, and below real folders (/var/run may be a link)."""
    below_folders = all(seen.get(parent, False) for parent in _parents(addition.path))
    if not addition.replaces and (addition.path in seen or not below_folders):
        return
    member = tarfile.TarInfo(addition.path)
    member.mode = addition.mode
    if addition.content is not None:
        member.size = len(addition.content)
        yield from _entry(member, io.BytesIO(addition.content))
        return
    member.type = tarfile.DIRTYPE if addition.target is None else tarfile.SYMTYPE
    member.linkname = addition.target or ""
    seen[addition.path] = addition.target is None
    yield from _entry(member, None)


def _parents(path: str) -> list[str]:
    """`a/b/c` -> `["a", "a/b"]`."""
    parts = path.split("/")
    return ["/".join(parts[:i]) for i in range(1, len(parts))]


class _Source(io.RawIOBase):
    """A file to read from, over an iterator of chunks."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        super().__init__()
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        parts: list[memoryview] = []
        wanted = size
        while wanted > 0:
            if not self._rest:
                chunk = next(self._chunks, b"")
                if not chunk:
                    break
                self._rest = memoryview(chunk)
            parts.append(self._rest[:wanted])
            self._rest = self._rest[wanted:]
            wanted -= len(parts[-1])
        return b"".join(parts)
