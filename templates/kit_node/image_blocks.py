"""Splits an image into blocks with a digest each, so that a wrong block is noticed when it arrives.

A list of blocks is a text: a first line with its format, the image's sha256, its bytes and the bytes of a block, then a line with
the sha256 of each block. kit/images/block_list.py writes the same form. Works with any Python from 3.8.
"""

from __future__ import annotations

import hashlib
import os
from typing import Union

# What a block's bytes come in.
Bytes = Union[bytes, bytearray, memoryview]
FORMAT = "kit-blocks-1"
SUFFIX = ".blocks"
# At most this many blocks in a list, and the least bytes of one.
_MOST_BLOCKS, _LEAST_BYTES = 4096, 256 * 1024
_PIECE = 1 << 20


class BlockList:
    """The blocks of one image. sha256: of all its bytes, in hex. digests: of each block, in hex."""

    def __init__(self, sha256: str, size: int, block: int, digests: list[str]) -> None:
        self.sha256, self.size, self.block, self.digests = sha256, size, block, digests

    @property
    def count(self) -> int:
        """The number of blocks."""
        return len(self.digests)

    def offset(self, index: int) -> int:
        """Where a block begins."""
        return index * self.block

    def length(self, index: int) -> int:
        """The bytes of a block; the last may be shorter."""
        return min(self.block, self.size - index * self.block)

    def fits(self, index: int, content: Bytes) -> bool:
        """Whether these are the bytes of that block."""
        return hashlib.sha256(content).hexdigest() == self.digests[index]

    def text(self) -> str:
        """The list as it is stored and sent."""
        return "\n".join([f"{FORMAT} {self.sha256} {self.size} {self.block}", *self.digests, ""])


def parse(text: str, sha256: str) -> BlockList | None:
    """The list in a text, or None if it is not a whole list of this image."""
    head, _, body = text.partition("\n")
    words, digests = head.split(" "), body.split()
    if len(words) != 4 or words[:2] != [FORMAT, sha256] or not (words[2].isdigit() and words[3].isdigit()):
        return None
    size, block = int(words[2]), int(words[3])
    if block < 1 or len(digests) != -(-size // block) or any(len(one) != 64 for one in digests):
        return None
    return BlockList(sha256, size, block, digests)


def block_bytes(size: int) -> int:
    """The bytes of a block of an image of this size: a power of two."""
    block = _LEAST_BYTES
    while block * _MOST_BLOCKS < size:
        block *= 2
    return block


def make(source: int, copy: int | None = None) -> BlockList:
    """Read an image once, and list its blocks. source, copy: descriptors; copy, if given, gets the same bytes."""
    size = os.fstat(source).st_size
    block = block_bytes(size)
    whole = hashlib.sha256()
    digests: list[str] = []
    for offset in range(0, size, block):
        content = read_at(source, offset, min(block, size - offset))
        whole.update(content)
        digests.append(hashlib.sha256(content).hexdigest())
        if copy is not None:
            write_at(copy, offset, content)
    return BlockList(whole.hexdigest(), size, block, digests)


def good_prefix(handle: int, blocks: BlockList) -> int:
    """How many blocks at the beginning of a file are right."""
    for index in range(blocks.count):
        content = os.pread(handle, blocks.length(index), blocks.offset(index))
        if not blocks.fits(index, content):
            return index
    return blocks.count


def read_at(handle: int, offset: int, length: int) -> bytearray:
    """Exactly these bytes of a file. EOFError when it ends before."""
    content = bytearray()
    while len(content) < length:
        piece = os.pread(handle, min(_PIECE, length - len(content)), offset + len(content))
        if not piece:
            raise EOFError(f"the file ends at byte {offset + len(content)}")
        content += piece
    return content


def write_at(handle: int, offset: int, content: Bytes) -> None:
    """Write all of these bytes at an offset."""
    view = memoryview(content)
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written
