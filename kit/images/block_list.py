"""Lists the blocks of an image with a digest each, for the nodes that pass it on to each other (`image.stage = "chain"`).

templates/kit_node/image_blocks.py reads the list on the nodes, and explains its form. That module cannot import the kit, and
the kit does not import from a run's files, so both can write a list; a test compares the two.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SUFFIX = ".blocks"
_FORMAT = "kit-blocks-1"
_MOST_BLOCKS, _LEAST_BYTES = 4096, 256 * 1024


def text(image: Path, sha256: str) -> str:
    """The list of an image with this digest (64 hex digits). Reads all of the image, on all cores."""
    size = image.stat().st_size
    block = _LEAST_BYTES
    while block * _MOST_BLOCKS < size:
        block *= 2
    handle = os.open(image, os.O_RDONLY)
    try:
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            digests = pool.map(lambda offset: _digest(handle, offset, min(block, size - offset)), range(0, size, block))
            return "\n".join([f"{_FORMAT} {sha256} {size} {block}", *digests, ""])
    finally:
        os.close(handle)


def _digest(handle: int, offset: int, length: int) -> str:
    digest = hashlib.sha256()
    while length:
        content = os.pread(handle, length, offset)
        if not content:
            raise OSError(f"the image ends at byte {offset}")
        digest.update(content)
        offset, length = offset + len(content), length - len(content)
    return digest.hexdigest()
