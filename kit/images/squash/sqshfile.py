"""Reads a .sqsh: its superblock, and Enroot's files in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from kit import shell
from kit.errors import LockError
from kit.files import untrusted_files
from kit.images.squash import enroot_layout
from kit.schema.image import ImageConfig, Squash

# Fields of the squashfs 4.0 superblock (kernel: fs/squashfs/squashfs_fs.h), little endian: magic, block size, compressor, used
# bytes, offsets of the tables of attributes, inodes and folders.
MAGIC = b"hsqs"
_LENGTH = 96
_BLOCK, _COMPRESSOR, _USED = slice(12, 16), slice(20, 22), slice(40, 48)
_XATTRS, _INODES, _FOLDERS = slice(56, 64), slice(64, 72), slice(72, 80)
_DIR, _REG, _SYMLINK, _LDIR, _LREG, _LSYMLINK, _NO_FRAGMENT = 1, 2, 3, 8, 9, 10, 0xFFFFFFFF
# Sizes of other inodes: folder, devices, pipe, socket, and their extended forms.
_FIXED = {_DIR: 32, 4: 24, 5: 24, 6: 20, 7: 20, 11: 28, 12: 28, 13: 24, 14: 24}
_COMPRESSORS = {1: "gzip", 3: "lzo", 4: "xz", 5: "lz4", 6: "zstd"}


def check(path: Path, *, hint: str = "make it again") -> None:
    """Check the superblock, and that the file is as long as it says; LockError otherwise."""
    head = _superblock(path, hint)
    used, size = int.from_bytes(head[_USED], "little"), path.stat().st_size
    if size < used:
        raise LockError(f"{path}: cut off: it has {size} of its {used} bytes", hint=hint)


def has_xattrs(path: Path) -> bool:
    """Whether any file in it has extended attributes."""
    return _superblock(path, "make it again")[_XATTRS] != b"\xff" * 8


def options(path: Path) -> Squash:
    """The squash options that the superblock records: compressor and block size."""
    head = _superblock(path, "make it again")
    compressor = _COMPRESSORS.get(int.from_bytes(head[_COMPRESSOR], "little"), "none")
    block = int.from_bytes(head[_BLOCK], "little") // 1024
    return Squash.model_validate({"compressor": compressor, "block": "1M" if block == 1024 else f"{block}K"})


def config(path: Path) -> ImageConfig:
    """Environment and working directory from Enroot's files in the image; empty ones if it has no such files."""
    workdir = re.search(r"^cd (.+?) && unset OLDPWD", _content(path, "etc/rc"), re.MULTILINE)
    return ImageConfig(
        env=enroot_layout.environment_of(_content(path, "etc/environment")),
        workdir=shlex.split(workdir[1])[0] if workdir else "/",
    )


def forget_folder_times(path: Path) -> None:
    """Set the modification time of every folder to 0, in an image whose inode table is not compressed (-noI).

    An engine gives a folder without a layer entry the time of unpacking, and changes times when it puts its own files over the
    image. mksquashfs 4.5 gives the root of a tar stream the current time, whatever -root-time says. LockError when the table is not
    as expected.
    """
    head = _superblock(path, "make it again")
    start, end = int.from_bytes(head[_INODES], "little"), int.from_bytes(head[_FOLDERS], "little")
    with path.open("r+b") as image:
        image.seek(start)
        table = image.read(end - start)
        inodes = bytearray()
        for offset in _blocks(table, path):
            inodes += table[offset : offset + _size(table, offset - 2)]
        for offset in _folder_inodes(inodes, path):
            inodes[offset + 8 : offset + 12] = bytes(4)
        done = 0
        for offset in _blocks(table, path):
            size = _size(table, offset - 2)
            image.seek(start + offset)
            image.write(inodes[done : done + size])
            done += size


def _blocks(table: bytes, path: Path) -> Iterator[int]:
    """Offsets of the content of each metadata block. Two bytes of length come first; their top bit means "not compressed"."""
    place = 0
    while place < len(table):
        if not table[place + 1] & 0x80:
            raise LockError(f"{path}: its inode table is compressed", hint="make it again")
        yield place + 2
        place += 2 + _size(table, place)


def _size(table: bytes, place: int) -> int:
    return int.from_bytes(table[place : place + 2], "little") & 0x7FFF


def _folder_inodes(inodes: bytearray, path: Path) -> Iterator[int]:
    """Offsets of the folders' inodes (kernel: fs/squashfs/squashfs_fs.h, struct squashfs_*_inode)."""
    place, block = 0, int.from_bytes(_superblock(path, "make it again")[_BLOCK], "little")
    while place < len(inodes):
        kind = inodes[place]
        if kind in (_DIR, _LDIR):
            yield place
        place += _inode_size(inodes, place, kind, block)


def _inode_size(inodes: bytearray, place: int, kind: int, block: int) -> int:
    def number(at: int, size: int = 4) -> int:
        return int.from_bytes(inodes[place + at : place + at + size], "little")

    def blocks(size: int, fragment: int) -> int:
        return 4 * (size // block if fragment != _NO_FRAGMENT else -(-size // block))

    if kind == _REG:
        return 32 + blocks(number(28), number(20))
    if kind == _LREG:
        return 56 + blocks(number(24, 8), number(44))
    if kind in (_SYMLINK, _LSYMLINK):
        return 24 + number(20) + (4 if kind == _LSYMLINK else 0)
    if kind == _LDIR:
        size = 40
        for _ in range(number(32, 2)):
            size += 12 + number(size + 8) + 1
        return size
    return _FIXED[kind]


def _superblock(path: Path, hint: str) -> bytes:
    try:
        head = untrusted_files.head(path, _LENGTH)
    except OSError as error:
        raise LockError(f"{path}: cannot be read: {error.strerror}", hint=hint) from None
    if len(head) < _LENGTH or not head.startswith(MAGIC):
        raise LockError(f"{path}: not a squashfs image", hint=hint)
    return head


def _content(path: Path, name: str) -> str:
    unsquashfs = shell.require("unsquashfs", hint="apt-get install squashfs-tools")
    done = shell.run([unsquashfs, "-cat", str(path), name], check=False)
    return done.stdout if done.returncode == 0 else ""
