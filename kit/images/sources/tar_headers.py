"""Reads headers at any offset of a tar. Plain headers are parsed by a fast path, all others by tarfile."""

from __future__ import annotations

import io
import tarfile
from typing import NamedTuple

from kit.images.sources.layer_bytes import Bytes, LayerFile
from kit.images.sources.tree_stream import ENCODING, ERRORS, Data

_BLOCK = tarfile.BLOCKSIZE
# Fields of a ustar header (pax(1), "ustar Interchange Format").
_NAME, _MODE, _SIZE, _TIME, _SUM = slice(0, 100), slice(100, 108), slice(124, 136), slice(136, 148), slice(148, 156)
_LINK, _PREFIX = slice(157, 257), slice(345, 500)
_TYPE = 156
_QUICK = frozenset(tarfile.REGTYPE + tarfile.LNKTYPE + tarfile.SYMTYPE + tarfile.DIRTYPE)
_REGULAR, _FOLDER = tarfile.REGTYPE[0], tarfile.DIRTYPE[0]
_BLANKS = 8 * ord(" ")  # the checksum's own field counts as blanks


class Header(NamedTuple):
    """The parts of a header that building a tree needs. end: the offset of the next header."""

    name: str
    type: bytes
    target: str
    end: int


class Headers:
    """The members of one tar. Raises tarfile's own errors for invalid headers."""

    def __init__(self, source: Bytes) -> None:
        self._source = source
        self._file = LayerFile(source)
        # fromtarfile() needs a TarFile for its file, its encoding and its global headers.
        self._tar = tarfile.open(fileobj=io.BytesIO(bytes(2 * _BLOCK)), encoding=ENCODING, errors=ERRORS)  # noqa: SIM115
        self._tar.fileobj = self._file  # type: ignore[assignment]

    def at(self, place: int) -> Header:
        """The member whose header, or whose first extended header, is at offset `place`."""
        found = None if self._tar.pax_headers else _quick(self._source.read_at(place, _BLOCK), place)
        if found is None:
            member = self._from_tarfile(place)
            found = Header(member.name, member.type, member.linkname, self._tar.offset)
        return found

    def member(self, offset: int) -> tarfile.TarInfo:
        """The same member as a complete TarInfo."""
        if not self._tar.pax_headers:
            header = self._source.read_at(offset, _BLOCK)
            quick = _quick(header, offset)
            if quick is not None:
                return _member(quick, header, offset)
        return self._from_tarfile(offset)

    def data(self, member: tarfile.TarInfo) -> Data:
        """The content of a file."""
        if not member.issparse():
            return _TarSlice(self._source, member.offset_data, member.size)
        found = self._tar.extractfile(member)
        assert found is not None, "a regular file"
        return found

    def _from_tarfile(self, place: int) -> tarfile.TarInfo:
        self._file.seek(place)
        self._tar.offset = place
        return tarfile.TarInfo.fromtarfile(self._tar)


def _quick(header: bytes, offset: int) -> Header | None:
    """Parse a header without extensions as `tarfile.TarInfo.frombuf` does; None for any other or damaged header."""
    if len(header) < _BLOCK or header[_TYPE] not in _QUICK:
        return None
    try:
        size = int(header[_SIZE].rstrip(b" \0") or b"0", 8)
        stated = int(header[_SUM].strip(b" \0"), 8)
    except ValueError:
        return None
    if size < 0 or stated != sum(header) - sum(header[_SUM]) + _BLANKS:
        return None
    type_ = header[_TYPE]
    name, prefix = _text(header[_NAME]), _text(header[_PREFIX])
    if type_ == _FOLDER:
        name = name.rstrip("/")
    if prefix:
        name = f"{prefix}/{name}"
    end = offset + _BLOCK + (-(-size // _BLOCK) * _BLOCK if type_ == _REGULAR else 0)
    target = _text(header[_LINK]) if type_ not in (_REGULAR, _FOLDER) else ""
    return Header(name, bytes([type_]), target, end)


def _member(quick: Header, header: bytes, offset: int) -> tarfile.TarInfo:
    """A TarInfo for a plain header. Raises tarfile's error for a field that is not a number."""
    try:
        mode, size, mtime = (int(header[field].strip(b" \0") or b"0", 8) for field in (_MODE, _SIZE, _TIME))
        member = tarfile.TarInfo(quick.name)
        member.mode, member.size, member.mtime, member.type, member.linkname = (
            mode,
            size,
            mtime,
            quick.type,
            quick.target,
        )
    except ValueError:
        member = tarfile.TarInfo.frombuf(header, ENCODING, ERRORS)  # a number in base 256, or an invalid one
    member.offset, member.offset_data = offset, offset + _BLOCK
    return member


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(ENCODING, ERRORS)


class _TarSlice:
    """`size` bytes of a tar from offset `place`."""

    def __init__(self, source: Bytes, place: int, size: int) -> None:
        self._source, self._place, self._left = source, place, size

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        chunk = self._source.read_at(self._place, min(size, self._left))
        self._place += len(chunk)
        self._left -= len(chunk)
        return chunk
