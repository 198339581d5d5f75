"""Reads a gzip layer in place: it decompresses forward in memory, and goes back by decompressing again from a saved state."""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path
from typing import IO, NamedTuple

from kit.errors import ImageError
from kit.images.sources.layer_bytes import Blob

_READ_BYTES, _CHUNK_BYTES = 1 << 16, 1 << 18  # an image may have 127 layers, and each keeps a chunk
# A mark holds zlib's window and state, some 45 KB. A layer of 1 GB needs 3 MB of marks.
_MARK_EVERY_BYTES = 16 << 20
_KEPT_BYTES = 4096  # bytes kept of the previous chunk, for a header that is read twice
_GZIP_WINDOW_BITS = 31  # zlib's window bits for a gzip header and the largest window
# Limits for decompressing again: a fraction of the layer, and a minimum in bytes. Beyond them the layer is unpacked to disk.
_REPEATED_FRACTION, _REPEATED_MIN_BYTES = 0.5, 64 << 20


class _Mark(NamedTuple):
    """A position where decompression can restart: offset in the tar, offset in the blob, and zlib's state there."""

    place: int
    packed: int
    state: zlib._Decompress


class GzipTar:
    """Random access to a gzip layer's tar; see layer_bytes.Bytes. ImageError for damaged data.

    work: a folder for the unpacked layer, used when the layer is read out of order and marks are too slow.
    """

    def __init__(self, blob: Blob, work: Path) -> None:
        self._packed, self._name, self._work = blob.open(), blob.name, work
        self._marks = [_Mark(0, 0, zlib.decompressobj(_GZIP_WINDOW_BITS))]
        self._chunk, self._again, self._frontier = b"", 0, 0
        self._plain: IO[bytes] | None = None
        self._restart_at(self._marks[0])

    def read_at(self, start: int, size: int) -> bytes:
        """`size` bytes of the tar from `start`."""
        if self._plain is None and start < self._at:
            self._seek_back(start)
        if self._plain is not None:
            self._plain.seek(start)
            return self._plain.read(size)
        parts = []
        while size > 0:
            part = self._chunk[start - self._at : start - self._at + size]
            if not part and not self._read_next_chunk():
                break
            parts.append(part)
            start, size = start + len(part), size - len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close the blob and the unpacked file."""
        self._packed.close()
        if self._plain is not None:
            self._plain.close()

    def _restart_at(self, mark: _Mark) -> None:
        self._at, self._chunk = mark.place, b""
        self._read, self._state, self._left = mark.packed, mark.state.copy(), b""

    def _seek_back(self, place: int) -> None:
        mark = next(mark for mark in reversed(self._marks) if mark.place <= place)
        self._again += self._at + len(self._chunk) - mark.place
        if self._again > max(_REPEATED_MIN_BYTES, self._frontier * _REPEATED_FRACTION):
            self._unpack_to_disk()
        else:
            self._restart_at(mark)

    def _unpack_to_disk(self) -> None:
        plain = tempfile.TemporaryFile(dir=self._work)  # noqa: SIM115 - see close
        self._restart_at(self._marks[0])
        while self._read_next_chunk():
            plain.write(self._chunk[-self._fresh :])
        self._plain, self._marks, self._chunk = plain, [], b""

    def _read_next_chunk(self) -> bool:
        """Decompress the next chunk of the tar; False at its end."""
        fresh = self._unpack()
        if not fresh:
            return False
        kept = self._chunk[-_KEPT_BYTES:]
        self._at += len(self._chunk) - len(kept)
        self._chunk, self._fresh = kept + fresh, len(fresh)
        end = self._at + len(self._chunk)
        self._frontier = max(self._frontier, end)
        if self._plain is None and end - self._marks[-1].place >= _MARK_EVERY_BYTES and not self._state.eof:
            self._marks.append(_Mark(end, self._read - len(self._left), self._state.copy()))
        return True

    def _unpack(self) -> bytes:
        try:
            while True:
                if self._state.eof and not self._next_member():
                    return b""
                if not self._left:
                    self._left = self._packed.read_at(self._read, _READ_BYTES)
                    self._read += len(self._left)
                    if not self._left:
                        raise EOFError("the data end early")
                fresh = self._state.decompress(self._left, _CHUNK_BYTES)
                self._left = self._state.unused_data if self._state.eof else self._state.unconsumed_tail
                if fresh:
                    return fresh
        except (zlib.error, EOFError) as error:
            raise ImageError(
                f"{self._name}: damaged or cut off gzip data: {error}", hint="copy or fetch it again"
            ) from None

    def _next_member(self) -> bool:
        """Whether another gzip member follows. Zeros are padding (RFC 1952 leaves them to the reader)."""
        while not self._left.lstrip(b"\0"):
            self._left = self._packed.read_at(self._read, _READ_BYTES)
            self._read += len(self._left)
            if not self._left:
                return False
        self._left = self._left.lstrip(b"\0")
        self._state = zlib.decompressobj(_GZIP_WINDOW_BITS)
        return True
