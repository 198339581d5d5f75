"""Whether an image file is the one that a lock names."""

from __future__ import annotations

import shlex
from pathlib import Path

from kit.errors import LockError
from kit.images import sqshfile, store
from kit.spec.image import ImageLock


def check(lock: ImageLock, store_dir: Path, *, full: bool) -> Path:
    """The locked image's path, after checking it; LockError, with the command that mends it, when it is not the locked one.

    Without full: superblock and size, in a millisecond. With full: sha256, about a second per gigabyte.
    """
    path = store.path(store_dir, lock.sha256)
    mend = f"run '{made_by(lock.name, lock.source)}'"
    if not path.is_file():
        raise LockError(f"image {lock.name}: {path} is not there", hint=mend)
    sqshfile.check(path, hint=mend)
    size = path.stat().st_size
    if size != lock.size:
        raise LockError(f"image {lock.name}: {path} has {size} bytes, and the lock says {lock.size}", hint=mend)
    if full and (found := store.digest_of(path)) != lock.sha256:
        hint = f"remove it, then {mend}"
        raise LockError(f"image {lock.name}: {path} has the digest sha256:{found}: it is damaged", hint=hint)
    return path


def made_by(name: str, source: str) -> str:
    """The command line that makes the image `name` from `source` (see ImageLock.source)."""
    return f"kit build-image {name}" if source == "build" else f"kit import-image {shlex.quote(source)} --name {name}"
