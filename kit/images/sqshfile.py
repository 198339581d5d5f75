"""What a .sqsh says about itself: its superblock, and the files that Enroot left in it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from kit import shell
from kit.errors import LockError
from kit.spec.image import ImageConfig, Squash

# squashfs 4.0 superblock (kernel: fs/squashfs/squashfs_fs.h), little endian: magic, block size, compressor, the root's place in
# the inode table, used bytes, the table's start.
MAGIC = b"hsqs"
_LENGTH = 96
_BLOCK, _COMPRESSOR, _ROOT, _USED, _INODES = slice(12, 16), slice(20, 22), slice(32, 40), slice(40, 48), slice(64, 72)
_METADATA = 8192
_COMPRESSORS = {1: "gzip", 3: "lzo", 4: "xz", 5: "lz4", 6: "zstd"}


def check(path: Path, *, hint: str = "make it again") -> None:
    """A squashfs superblock, and a file as long as it says; LockError otherwise."""
    head = _superblock(path, hint)
    used, size = int.from_bytes(head[_USED], "little"), path.stat().st_size
    if size < used:
        raise LockError(f"{path}: cut off: {size} bytes of {used}", hint=hint)


def options(path: Path) -> Squash:
    """How it was squashed, as far as the superblock tells: compressor and block size."""
    head = _superblock(path, "make it again")
    compressor = _COMPRESSORS.get(int.from_bytes(head[_COMPRESSOR], "little"), "none")
    block = int.from_bytes(head[_BLOCK], "little") // 1024
    return Squash.model_validate({"compressor": compressor, "block": "1M" if block == 1024 else f"{block}K"})


def config(path: Path) -> ImageConfig:
    """Environment and working directory that Enroot's files in the image declare; empty ones when it has no such files."""
    workdir = re.search(r"^cd (.+?) && unset OLDPWD", _content(path, "etc/rc"), re.MULTILINE)
    pairs = (line.partition("=") for line in _content(path, "etc/environment").splitlines())
    return ImageConfig(
        env={name: value for name, equals, value in pairs if equals and not name.startswith("#")},
        workdir=shlex.split(workdir[1])[0] if workdir else "/",
    )


def forget_root_time(path: Path) -> None:
    """Set the modification time of the root folder to 0, in an image whose inode table is not compressed (-noI).

    mksquashfs 4.5 gives the root of a tar stream the current time, whatever -root-time says. LockError when the table is not
    what it should be.
    """
    head = _superblock(path, "make it again")
    place, table = int.from_bytes(head[_ROOT], "little"), int.from_bytes(head[_INODES], "little")
    # A metadata block: two bytes of length, whose top bit says "not compressed", then up to 8 KiB. The inode may cross into
    # the next block; its time is the u32 eight bytes in.
    block, offset = table + (place >> 16), (place & 0xFFFF) + 8
    with path.open("r+b") as image:
        for _ in range(4):
            if offset >= _METADATA:
                block, offset = block + 2 + _METADATA, offset - _METADATA
            image.seek(block)
            if not int.from_bytes(image.read(2), "little") & 0x8000:
                raise LockError(f"{path}: its inode table is compressed", hint="make it again")
            image.seek(block + 2 + offset)
            image.write(b"\0")
            offset += 1


def _superblock(path: Path, hint: str) -> bytes:
    try:
        with path.open("rb") as image:
            head = image.read(_LENGTH)
    except OSError as error:
        raise LockError(f"{path}: cannot be read: {error.strerror}", hint=hint) from None
    if len(head) < _LENGTH or not head.startswith(MAGIC):
        raise LockError(f"{path}: not a squashfs image", hint=hint)
    return head


def _content(path: Path, name: str) -> str:
    unsquashfs = shell.require("unsquashfs", hint="apt-get install squashfs-tools")
    done = shell.run([unsquashfs, "-cat", str(path), name], check=False)
    return done.stdout if done.returncode == 0 else ""
