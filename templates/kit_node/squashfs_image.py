"""Reads where the files of a squashfs image lie in it. Runs on any Python from 3.8 on, and needs no other package.

Format: the kernel's fs/squashfs/squashfs_fs.h, version 4.0, little endian.
"""

from __future__ import annotations

import ctypes
import lzma
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_MAGIC, _VERSION = 0x73717368, 4
_DIR, _FILE = 1, 2
_NO_FRAGMENT, _UNCOMPRESSED_BLOCK, _UNCOMPRESSED_METADATA = 0xFFFFFFFF, 1 << 24, 1 << 15
_METADATA = 8192


class UnreadableImageError(Exception):
    """The image is none that this module can read; the message says why."""


class SquashFile(NamedTuple):
    """A regular file: its path, its size, its compressed blocks (offset, length), and the block of its last bytes, if shared."""

    path: str
    size: int
    blocks: list[tuple[int, int]]
    fragment: tuple[int, int] | None


class Image:
    """The files of a squashfs image."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("rb")  # noqa: SIM115 # as long as the image
        head = struct.unpack("<5I6H8Q", self._file.read(96))
        if (head[0], head[9]) != (_MAGIC, _VERSION):
            raise UnreadableImageError(f"{path} is no squashfs image of version {_VERSION}")
        self.block_size: int = head[3]
        self._decompress = _decompressor(head[5])
        self._root, self.used = head[11], head[12]
        self.inodes, self._folders, self._fragments = head[15:18]
        self._blocks: dict[int, tuple[bytes, int]] = {}

    def files(self) -> Iterator[SquashFile]:
        """All regular files, folder by folder."""
        waiting = [("", self._root)]
        while waiting:
            path, reference = waiting.pop()
            for name, kind, inode in self._entries(reference):
                if kind == _DIR:
                    waiting.append((f"{path}/{name}", inode))
                elif kind == _FILE:
                    yield self._described(f"{path}/{name}", inode)

    def _entries(self, reference: int) -> Iterator[tuple[str, int, int]]:
        """Name, kind and inode of what lies in a folder."""
        cursor = _Cursor(self, self.inodes + (reference >> 16), reference & 0xFFFF)
        kind = cursor.unpack("<H2x2H2I")[0]
        if kind == _DIR:
            start, _, size, offset, _ = cursor.unpack("<2I2HI")
        else:
            _, size, start, _, _, offset, _ = cursor.unpack("<4I2HI")
        cursor = _Cursor(self, self._folders + start, offset)
        left = size - 3
        while left > 0:
            count, block, _ = cursor.unpack("<3I")
            left -= 12
            for _ in range(count + 1):
                place, _, kind, length = cursor.unpack("<HhHH")
                name = os.fsdecode(cursor.read(length + 1))
                left -= 8 + length + 1
                yield name, kind, block << 16 | place

    def _described(self, path: str, reference: int) -> SquashFile:
        cursor = _Cursor(self, self.inodes + (reference >> 16), reference & 0xFFFF)
        if cursor.unpack("<H2x2H2I")[0] == _FILE:
            start, fragment, _, size = cursor.unpack("<4I")
        else:
            start, size, _, _, fragment, _, _ = cursor.unpack("<3Q4I")
        count = size // self.block_size if fragment != _NO_FRAGMENT else -(-size // self.block_size)
        blocks = []
        for word in struct.unpack(f"<{count}I", cursor.read(4 * count)):
            length = word & ~_UNCOMPRESSED_BLOCK
            blocks.append((start, length))
            start += length
        return SquashFile(path, size, blocks, self._fragment(fragment) if fragment != _NO_FRAGMENT else None)

    def _fragment(self, number: int) -> tuple[int, int]:
        per_block = _METADATA // 16
        self._file.seek(self._fragments + number // per_block * 8)
        (at,) = struct.unpack("<Q", self._file.read(8))
        start, word = struct.unpack_from("<QI", self.metadata(at)[0], number % per_block * 16)
        return start, word & ~_UNCOMPRESSED_BLOCK

    def metadata(self, at: int) -> tuple[bytes, int]:
        """A block of metadata, and the offset of the next one."""
        if at not in self._blocks:
            self._file.seek(at)
            (word,) = struct.unpack("<H", self._file.read(2))
            length = word & ~_UNCOMPRESSED_METADATA
            data = self._file.read(length)
            self._blocks[at] = (data if word & _UNCOMPRESSED_METADATA else self._decompress(data), at + 2 + length)
        return self._blocks[at]


class _Cursor:
    """Reads metadata on from a place in a block, over the ends of blocks."""

    def __init__(self, image: Image, at: int, offset: int) -> None:
        self._image, self._at, self._offset = image, at, offset

    def read(self, count: int) -> bytes:
        parts = []
        while count:
            data, after = self._image.metadata(self._at)
            part = data[self._offset : self._offset + count]
            parts.append(part)
            count -= len(part)
            self._offset += len(part)
            if self._offset >= len(data):
                self._at, self._offset = after, 0
        return b"".join(parts)

    def unpack(self, form: str) -> tuple[int, ...]:
        return struct.unpack(form, self.read(struct.calcsize(form)))


def _decompressor(number: int) -> Callable[[bytes], bytes]:
    """Of metadata. Python before 3.14 has no zstd; every node that mounts the image has the library."""
    if number == 1:
        return zlib.decompress
    if number == 4:
        return lzma.decompress
    names = {5: ("liblz4.so.1", "LZ4_decompress_safe"), 6: ("libzstd.so.1", "ZSTD_decompress")}
    if number not in names:
        raise UnreadableImageError(f"unknown compressor {number}")
    try:
        function = getattr(ctypes.CDLL(names[number][0]), names[number][1])
    except OSError as error:
        raise UnreadableImageError(str(error)) from None
    out = ctypes.create_string_buffer(_METADATA)

    def decompress(data: bytes) -> bytes:
        if number == 5:
            size = function(data, out, len(data), _METADATA)
        else:
            function.restype = ctypes.c_size_t
            size = function(out, ctypes.c_size_t(_METADATA), data, ctypes.c_size_t(len(data)))
        if not 0 <= size <= _METADATA:
            raise UnreadableImageError("the image is damaged")
        return out.raw[:size]

    return decompress
