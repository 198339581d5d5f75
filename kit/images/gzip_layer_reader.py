"""A gzip layer that is read in place: unpacked in memory as it is asked for, and again from a mark for what lies before."""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path
from typing import IO, NamedTuple

from kit.errors import ImageError
from kit.images.layer_bytes import Blob

_IN, _OUT = 1 << 16, 1 << 18  # an image may have 127 layers, and each keeps a chunk
# A mark holds zlib's window and state, some 45 KB: 3 MB for a layer of 1 GB.
_BETWEEN_MARKS = 16 << 20
_KEPT = 4096  # of the chunk before, for a header that is read twice
_GZIP = 31  # zlib's window bits for a gzip header and the largest window
# What unpacking again may cost, as a part of the layer and at least, before the layer is unpacked to the disk instead.
_AGAIN, _AGAIN_AT_LEAST = 0.5, 64 << 20


class _Mark(NamedTuple):
    """Where unpacking can begin: the place in the tar, the one in the blob, and the state there."""

    place: int
    packed: int
    state: zlib._Decompress


class GzipTar:
    """See blob.Bytes. ImageError for damaged data. work: takes a layer that is read in no order, for which marks are too slow."""

    def __init__(self, blob: Blob, work: Path) -> None:
        self._packed, self._name, self._work = blob.open(), blob.name, work
        self._marks = [_Mark(0, 0, zlib.decompressobj(_GZIP))]
        self._chunk, self._again, self._frontier = b"", 0, 0
        self._plain: IO[bytes] | None = None
        self._begin(self._marks[0])

    def read_at(self, place: int, size: int) -> bytes:
        """See Bytes."""
        if self._plain is None and place < self._at:
            self._back(place)
        if self._plain is not None:
            self._plain.seek(place)
            return self._plain.read(size)
        parts = []
        while size > 0:
            part = self._chunk[place - self._at : place - self._at + size]
            if not part and not self._forward():
                break
            parts.append(part)
            place, size = place + len(part), size - len(part)
        return b"".join(parts)

    def close(self) -> None:
        """See Bytes."""
        self._packed.close()
        if self._plain is not None:
            self._plain.close()

    def _begin(self, mark: _Mark) -> None:
        self._at, self._chunk = mark.place, b""
        self._read, self._state, self._left = mark.packed, mark.state.copy(), b""

    def _back(self, place: int) -> None:
        mark = next(mark for mark in reversed(self._marks) if mark.place <= place)
        self._again += self._at + len(self._chunk) - mark.place
        if self._again > max(_AGAIN_AT_LEAST, self._frontier * _AGAIN):
            self._to_disk()
        else:
            self._begin(mark)

    def _to_disk(self) -> None:
        plain = tempfile.TemporaryFile(dir=self._work)  # noqa: SIM115 - see close
        self._begin(self._marks[0])
        while self._forward():
            plain.write(self._chunk[-self._fresh :])
        self._plain, self._marks, self._chunk = plain, [], b""

    def _forward(self) -> bool:
        """The next chunk of the tar; False at its end."""
        fresh = self._unpack()
        if not fresh:
            return False
        kept = self._chunk[-_KEPT:]
        self._at += len(self._chunk) - len(kept)
        self._chunk, self._fresh = kept + fresh, len(fresh)
        end = self._at + len(self._chunk)
        self._frontier = max(self._frontier, end)
        if self._plain is None and end - self._marks[-1].place >= _BETWEEN_MARKS and not self._state.eof:
            self._marks.append(_Mark(end, self._read - len(self._left), self._state.copy()))
        return True

    def _unpack(self) -> bytes:
        try:
            while True:
                if self._state.eof and not self._next_member():
                    return b""
                if not self._left:
                    self._left = self._packed.read_at(self._read, _IN)
                    self._read += len(self._left)
                    if not self._left:
                        raise EOFError("the data end early")
                fresh = self._state.decompress(self._left, _OUT)
                self._left = self._state.unused_data if self._state.eof else self._state.unconsumed_tail
                if fresh:
                    return fresh
        except (zlib.error, EOFError) as error:
            raise ImageError(
                f"{self._name}: damaged or cut off gzip data: {error}", hint="copy or fetch it again"
            ) from None

    def _next_member(self) -> bool:
        """Whether more follows the end of a member of gzip; zeros are padding (RFC 1952 leaves them to the reader)."""
        while not self._left.lstrip(b"\0"):
            self._left = self._packed.read_at(self._read, _IN)
            self._read += len(self._left)
            if not self._left:
                return False
        self._left = self._left.lstrip(b"\0")
        self._state = zlib.decompressobj(_GZIP)
        return True
