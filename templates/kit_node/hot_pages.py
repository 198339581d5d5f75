"""hot_pages.py IMAGE LIST JOB SECONDS: learns which parts of a squashfs image the ranks of a job on this node have read.

The kernel keeps what was read of each file of a mounted image. This program asks it file by file (mincore), through the root folder
of a rank, and adds to LIST where these blocks lie in the image: a line `OFFSET LENGTH` each, in the order of the image. Its first
line says whether the list still grows. SECONDS: since the start of the ranks. Any Python from 3.8 on runs this.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from squashfs_image import Image, UnreadableImageError

PAGE = os.sysconf("SC_PAGESIZE")
# Parts of the image that lie so near to each other are read as one.
NEAR = 256 * 1024
# Above this share, the kernel did not tell what was read (it calls a page of a foreign file cached), or all was.
MOST = 0.9
# A list is settled when a look at least this long after the start of the ranks adds less than this share. Before, they may import.
SETTLED_AFTER, SETTLED = 60, 0.01


def read_pages(path: str, size: int) -> bytes:
    """A byte for each page of a file: odd where the kernel has it. Empty if the file is not there any more."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        if os.fstat(number).st_size != size:
            return b""
        address = _LIBC.mmap(None, size, 1, 1, number, 0)
        if address == ctypes.c_void_p(-1).value:
            return b""
        seen = ctypes.create_string_buffer(-(-size // PAGE))
        failed = _LIBC.mincore(address, size, seen)
        _LIBC.munmap(address, size)
        return b"" if failed else seen.raw
    finally:
        os.close(number)


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def used_blocks(image: Image, root: str) -> Iterator[tuple[int, int]]:
    """Offset and length of each compressed block of which something was read."""
    pages = image.block_size // PAGE
    for file in image.files():
        seen = read_pages(root + file.path, file.size) if file.size else b""
        if not any(byte & 1 for byte in seen):
            continue
        for index, block in enumerate(file.blocks):
            if block[1] and any(byte & 1 for byte in seen[index * pages : (index + 1) * pages]):
                yield block
        if file.fragment and any(byte & 1 for byte in seen[len(file.blocks) * pages :]):
            yield file.fragment


def joined(blocks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The blocks in order, with those as one that lie near to each other."""
    merged: list[tuple[int, int]] = []
    for start, length in sorted(set(blocks)):
        if merged and start - sum(merged[-1]) <= NEAR:
            merged[-1] = (merged[-1][0], max(sum(merged[-1]), start + length) - merged[-1][0])
        else:
            merged.append((start, length))
    return merged


def rank_root(job: str) -> str | None:
    """The root folder of a rank of the job on this node; None if there is none in a container."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "environ").read_bytes().split(b"\0")
            contained = not (process / "root/").samefile("/")
        except OSError:
            continue
        is_rank = f"SLURM_JOB_ID={job}".encode() in words and any(word.startswith(b"RANK=") for word in words)
        if is_rank and contained:
            return f"{process}/root"
    return None


def known(path: str) -> list[tuple[int, int]]:
    """The parts that the list holds. The caller has checked whose it is."""
    try:
        lines = [
            line.split() for line in Path(path).read_text(encoding="ascii").splitlines() if not line.startswith("#")
        ]
        return [(int(start), int(length)) for start, length in lines]
    except (OSError, ValueError):
        return []


def write(path: str, first: str, ranges: list[tuple[int, int]]) -> None:
    """The whole list, or none: a reader never sees a part."""
    partial = Path(f"{path}.{os.getpid()}.partial")
    text = f"# {first}\n" + "".join(f"{start} {length}\n" for start, length in ranges)
    try:
        number = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(number)
        partial.replace(path)
    finally:
        if partial.exists():
            partial.unlink()


def main(image_path: str, path: str, job: str, seconds: str) -> None:
    """Write the list. Does nothing without a rank in a container."""
    root = rank_root(job)
    if root is None:
        return
    image = Image(image_path)
    blocks = list(used_blocks(image, root))
    if not blocks:
        return
    # Every start reads the tables, which lie behind all files.
    before = known(path)
    ranges = joined([*before, *blocks, (image.inodes, image.used - image.inodes)])
    hot = sum(length for _, length in ranges)
    added = hot - sum(length for _, length in before)
    if hot > MOST * image.used:
        print(f"hot pages are not learnt: {hot} of {image.used} bytes seem to be read")
        return
    settled = int(seconds) >= SETTLED_AFTER and added < SETTLED * hot
    write(path, "settled" if settled else "growing", ranges)
    print(
        f"hot pages: {hot} of {image.used} bytes in {len(ranges)} parts, {added} of them new, {seconds} s after the start"
    )


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except UnreadableImageError as error:
        sys.exit(f"hot pages are not learnt: {error}")
