"""An image's tree as a stream: reads tar members, edits them, writes tar bytes for mksquashfs.

It needs no root and no disk space.
"""

from __future__ import annotations

import copy
import io
import tarfile
import tempfile
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from kit.errors import ImageError
from kit.images.sources import tree_edits
from kit.images.sources.tree_edits import Addition, Edit, clean, walk_key

_BLOCK = 1 << 20
ENCODING, ERRORS = "utf-8", "surrogateescape"

_ORDINARY = frozenset({tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE})
_OCTAL_END = 8**11  # limit of the eleven octal digits of size and time (pax(1), "ustar Interchange Format")
_BLANK_SUM = 8 * ord(" ")  # the checksum's own field counts as blanks


class Data(Protocol):
    """The content of a file, read once from its beginning."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; empty at the end."""


Entry = tuple[tarfile.TarInfo, Data | None]


def parsed(chunks: Iterable[bytes]) -> Iterator[Entry]:
    """Yield the members of a tar stream with their data. Read each member's data before asking for the next.

    ImageError when the tar is damaged or cut off, or has a hard link to a name that did not come before it.
    """
    stream = ChunkFile(chunks)
    names: set[str] = set()
    try:
        source = tarfile.open(  # noqa: SIM115 - a stream has no file to close
            fileobj=stream, mode="r|", bufsize=_BLOCK, encoding=ENCODING, errors=ERRORS
        )
        while (member := source.next()) is not None:
            source.members = []  # type: ignore[attr-defined]  # it remembers every member; a stream has no use for them
            name = clean(member.name)
            # Only the target of a hard link is a name in the image: a symbolic link may name any path.
            if member.islnk() and (target := clean(member.linkname)) not in names:
                raise ImageError(f"{name}: a hard link to {target}, which is not in the image")
            if not member.isdir():
                names.add(name)
            yield member, source.extractfile(member) if member.isreg() else None
    except tarfile.TarError as error:
        raise ImageError(f"the engine's export is not a readable tar: {error}", hint="try again") from None


@dataclass
class DroppedData:
    """Data of an image that is dropped, for a warning: files with access control lists."""

    count: int = 0
    first: str = ""

    def add(self, path: str) -> None:
        """Count one more file."""
        self.first = self.first or path
        self.count += 1

    @property
    def warning(self) -> str:
        """A warning for the user; empty when nothing was lost."""
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return (
            f"{self.first}{more}: access control lists are not kept, only owner, group and mode" if self.count else ""
        )


def edited(members: Iterable[Entry], edit: Edit, work: Path, lost: DroppedData | None = None) -> Generator[bytes]:
    """A tar of the members with `edit` applied.

    The members come in walk order, and a hard link after its target, as `parsed` and `layer_tree.merged` yield them. Additions are
    inserted at their place in the walk, so that mksquashfs writes the same bytes from this stream as from the tree itself. work: a
    folder for the data of dropped files, which another hard link may still need. lost: collects what is not kept.
    """
    with _Spool(work) as spool:
        yield from _Editing(edit, spool, lost or DroppedData()).stream(members)


class _Spool:
    """Files that were dropped from the stream, kept for hard links to them that remain."""

    def __init__(self, work: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=work)  # noqa: SIM115 - closed by __exit__
        self._held: dict[str, tuple[tarfile.TarInfo, int]] = {}

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def hold(self, name: str, member: tarfile.TarInfo, data: Data | None) -> None:
        """Keep the header and data of a dropped member."""
        self._file.seek(0, io.SEEK_END)
        self._held[name] = (member, self._file.tell())
        while data is not None and (chunk := data.read(_BLOCK)):
            self._file.write(chunk)

    def take(self, name: str) -> Entry | None:
        """The dropped member of this name, as a new one; None if there is none."""
        if name not in self._held:
            return None
        member, place = self._held[name]
        self._file.seek(place)
        return copy.copy(member), _FileChunk(self._file, member.size) if member.isreg() else None


class _FileChunk:
    """The next `size` bytes of a file."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        chunk = self._file.read(min(size, self._left))
        self._left -= len(chunk)
        return chunk


class _Editing:
    """One pass over a stream."""

    def __init__(self, edit: Edit, spool: _Spool, lost: DroppedData) -> None:
        self._edit, self._lost = edit, lost
        self._spool = spool
        self._waiting = list(edit.additions)
        # Whether a path of interest is a folder, as far as the walk has come.
        self._seen = {path: False for a in edit.additions for path in (*_parents(a.path), a.path)}
        self._met: set[str] = set()
        self._moved: dict[str, str] = {}  # name of a file that was dropped -> another name of the file

    def stream(self, members: Iterable[Entry]) -> Iterator[bytes]:
        """The edited tar; see `edited`."""
        for member, data in members:
            name = clean(member.name)
            while self._waiting and self._waiting[0].key < walk_key(name):
                yield from self._add(self._waiting.pop(0))
            if not name:
                continue
            if self._edit.drops(name) or (name in tree_edits.ENGINE_FOLDERS and not member.isdir()):
                if member.islnk():
                    self._note_name(name, clean(member.linkname))
                elif not member.isdir():
                    self._spool.hold(name, member, data)
                continue
            yield from self._member(member, name, data)
        for addition in self._waiting:
            yield from self._add(addition)
        yield bytes(2 * tarfile.BLOCKSIZE)

    def _member(self, member: tarfile.TarInfo, name: str, data: Data | None) -> Iterator[bytes]:
        if member.islnk():
            member, data = self._linked(member, name)
        if name in self._seen:
            self._met.add(name)
            self._seen[name] = member.isdir()
        if member.pax_headers and tree_edits.has_acl(member):
            self._lost.add(name)
        tree_edits.normalise(member, name)
        if name in tree_edits.ENGINE_FOLDERS:
            member.mode = tree_edits.FOLDER_MODE
        yield from encoded(member, data)

    def _note_name(self, name: str, target: str) -> None:
        """Note that a dropped name is one of a file's. A tar may hold the same name twice, also as a link to itself."""
        present = self._present_name(target)
        if present != name:
            self._moved[name] = present

    def _present_name(self, name: str) -> str:
        """The name under which a file is held or kept now."""
        while name in self._moved:
            name = self._moved[name]
        return name

    def _linked(self, member: tarfile.TarInfo, name: str) -> Entry:
        """A hard link to a name that stays. If the file's first name was dropped, its next name gets the file itself."""
        target = self._present_name(clean(member.linkname))
        held = self._spool.take(target)
        if held is not None:
            self._moved[target] = name
            return held[0], held[1]
        member.linkname = target
        return member, None

    def _add(self, addition: Addition) -> Iterator[bytes]:
        """Write one addition.

        A folder is added only if the image has nothing there, and below real folders (/var/run may be a link).
        """
        below_folders = all(self._seen[parent] for parent in _parents(addition.path))
        there = addition.path in self._met
        if self._edit.covers(addition.path) or (not addition.replaces and (there or not below_folders)):
            return
        if addition.path in tree_edits.ENGINE_FOLDERS and there:
            return
        self._met.add(addition.path)
        member = tarfile.TarInfo(addition.path)
        member.mode = addition.mode
        if addition.content is not None:
            member.size = len(addition.content)
            yield from encoded(member, io.BytesIO(addition.content))
            return
        member.type = tarfile.DIRTYPE if addition.target is None else tarfile.SYMTYPE
        member.linkname = addition.target or ""
        self._seen[addition.path] = addition.target is None
        yield from encoded(member, None)


def encoded(member: tarfile.TarInfo, data: Data | None) -> Iterator[bytes]:
    """A member as tar bytes that mksquashfs 4.5 reads correctly. ImageError when its data end early."""
    yield from _xattrs(member)
    # GNU headers: mksquashfs 4.5 drops the leading slash of a link target in a PAX header.
    yield _header(member) or member.tobuf(tarfile.GNU_FORMAT, ENCODING, ERRORS)
    if data is None:
        return
    left = member.size
    while left and (chunk := data.read(min(_BLOCK, left))):
        left -= len(chunk)
        yield chunk
    if left:
        raise ImageError(f"{member.name}: its data end {left} bytes early", hint="make or fetch the image again")
    yield bytes(-member.size % tarfile.BLOCKSIZE)


def _header(member: tarfile.TarInfo) -> bytes:
    """The same bytes as `tobuf` for an ordinary member of root, five times as fast; empty for any other member."""
    name = member.name.encode(ENCODING, ERRORS) + (b"/" if member.type == tarfile.DIRTYPE else b"")
    target = member.linkname.encode(ENCODING, ERRORS)
    ordinary = member.type in _ORDINARY and len(name) <= tarfile.LENGTH_NAME and len(target) <= tarfile.LENGTH_LINK
    if (
        not ordinary
        or not (0 <= member.size < _OCTAL_END and 0 <= member.mtime < _OCTAL_END)
        or member.uid
        or member.gid
    ):
        return b""
    numbers = (member.mode & 0o7777, member.size, int(member.mtime))
    start = b"%b%07o\x000000000\x000000000\x00%011o\x00%011o\x00" % (name.ljust(100, b"\0"), *numbers)
    rest = b"%b%bustar  \0" % (member.type, target.ljust(100, b"\0"))
    total = sum(start) + sum(rest) + _BLANK_SUM
    return (b"%b%06o\0 %b" % (start, total, rest)).ljust(tarfile.BLOCKSIZE, b"\0")


def _xattrs(member: tarfile.TarInfo) -> Iterator[bytes]:
    """A PAX header with only the member's extended attributes, such as file capabilities."""
    records = b"".join(_pax_record(key, value) for key, value in member.pax_headers.items() if tree_edits.is_kept(key))
    if records:
        header = tarfile.TarInfo("xattrs")
        header.type, header.size = tarfile.XHDTYPE, len(records)
        yield from encoded(header, io.BytesIO(records))


def _pax_record(key: str, value: str) -> bytes:
    """`<length> <key>=<value>` and a newline. The length includes its own digits (pax(1), "pax Extended Header")."""
    body = f" {key}=".encode() + value.encode(errors=ERRORS) + b"\n"
    length = len(body)
    while length != len(str(length)) + len(body):
        length = len(str(length)) + len(body)
    return str(length).encode() + body


def _parents(path: str) -> list[str]:
    """`a/b/c` -> `["a", "a/b"]`."""
    parts = path.split("/")
    return ["/".join(parts[:i]) for i in range(1, len(parts))]


class ChunkFile(io.RawIOBase):
    """A readable file object over an iterator of chunks."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        super().__init__()
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes."""
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
