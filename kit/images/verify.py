"""Whether an image file is the one that a lock names."""

from __future__ import annotations

import shlex
from pathlib import Path

from kit.errors import LockError
from kit.images import store
from kit.spec.image import ImageLock

# squashfs 4.0 superblock: magic at 0, used bytes as a little-endian u64 at 40 (kernel: fs/squashfs/squashfs_fs.h).
_MAGIC = b"hsqs"
_USED = slice(40, 48)
_SUPERBLOCK = 96


def check(lock: ImageLock, store_dir: Path, *, full: bool) -> Path:
    """The locked image's path, after checking it; LockError, with the command that mends it, when it is not the locked one.

    Without full: superblock and size, in a millisecond. With full: sha256, about a second per gigabyte.
    """
    path = store.path(store_dir, lock.sha256)
    mend = f"run '{made_by(lock.name, lock.source)}'"
    if not path.is_file():
        raise LockError(f"image {lock.name}: {path} is not there", hint=mend)
    check_file(path, hint=mend)
    size = path.stat().st_size
    if size != lock.size:
        raise LockError(f"image {lock.name}: {path} has {size} bytes, and the lock says {lock.size}", hint=mend)
    if full and (found := store.digest_of(path)) != lock.sha256:
        raise LockError(f"image {lock.name}: {path} has the digest sha256:{found}, and is damaged", hint=mend)
    return path


def made_by(name: str, source: str) -> str:
    """The command line that makes the image `name` from `source` (see ImageLock.source)."""
    return f"kit build-image {name}" if source == "build" else f"kit import-image {shlex.quote(source)} --name {name}"


def check_file(path: Path, *, hint: str = "make it again") -> None:
    """A squashfs superblock, and a file as long as it says; LockError otherwise."""
    try:
        with path.open("rb") as image:
            head = image.read(_SUPERBLOCK)
        size = path.stat().st_size
    except OSError as error:
        raise LockError(f"{path}: cannot be read: {error.strerror}", hint=hint) from None
    if len(head) < _SUPERBLOCK or not head.startswith(_MAGIC):
        raise LockError(f"{path}: not a squashfs image", hint=hint)
    used = int.from_bytes(head[_USED], "little")
    if size < used:
        raise LockError(f"{path}: cut off: {size} bytes of {used}", hint=hint)
