"""Reads a layer's bytes from a layout, an archive or the cache: at any offset, from any thread, without a copy."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kit.errors import ImageError

_CHUNK = 1 << 20


class Bytes(Protocol):
    """Random access to the uncompressed tar of a layer."""

    def read_at(self, start: int, size: int) -> bytes:
        """`size` bytes from offset `start`; fewer only at the end of the tar."""

    def close(self) -> None:
        """Close the file."""


@dataclass(frozen=True, kw_only=True)
class Blob:
    """A layer as the image holds it: `size` bytes of `file` from `start`. They are a tar, compressed or not.

    digest: `sha256:…` or `sha512:…` of these bytes, or with of_tar, of the tar in them; empty: the bytes cannot be checked. name:
    for errors.
    """

    file: Path
    size: int
    start: int = 0
    digest: str = ""
    of_tar: bool = False
    name: str = ""

    @classmethod
    def whole(cls, file: Path, *, name: str = "") -> Blob:
        """All of a file, without a digest."""
        return cls(file=file, size=file.stat().st_size, name=name or file.name)

    def open(self) -> FileSlice:
        """Open the bytes as they are, without decompression."""
        return FileSlice(self.file, self.start, self.size)


class FileSlice:
    """A part of a file."""

    def __init__(self, file: Path, start: int, size: int) -> None:
        self._handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._start, self.size = start, size

    def read_at(self, start: int, size: int) -> bytes:
        """Up to `size` bytes from `start`."""
        size = min(size, self.size - start)
        return os.pread(self._handle, size, self._start + start) if size > 0 else b""

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


class LayerFile:
    """A file object with the methods that the standard library's readers need."""

    def __init__(self, source: Bytes) -> None:
        self._source, self._place = source, 0

    def seek(self, place: int) -> int:
        """Set the offset of the next read."""
        self._place = place
        return place

    def tell(self) -> int:
        """Offset at which the next read begins, in bytes."""
        return self._place

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        chunk = self._source.read_at(self._place, size)
        self._place += len(chunk)
        return chunk

    def seekable(self) -> bool:
        """Always true."""
        return True


def chunks(source: Bytes, ended: threading.Event | None = None) -> Iterator[bytes]:
    """All bytes in order, until `ended` is set."""
    place = 0
    while not (ended and ended.is_set()) and (chunk := source.read_at(place, _CHUNK)):
        place += len(chunk)
        yield chunk


def check(source: Bytes, digest: str, name: str, ended: threading.Event | None = None) -> None:
    """ImageError unless the bytes have the digest. If `ended` is set meanwhile, the check stops without a result."""
    algorithm = digest.partition(":")[0]
    found = hashlib.new(algorithm)
    for chunk in chunks(source, ended):
        found.update(chunk)
    if not (ended and ended.is_set()) and f"{algorithm}:{found.hexdigest()}" != digest:
        raise ImageError(
            f"{name}: has the digest {algorithm}:{found.hexdigest()} instead of {digest}: it is cut off or damaged",
            hint="copy or fetch it again",
        )
