"""Checks that an image file is the one that its lock names."""

from __future__ import annotations

import shlex
from pathlib import Path

from kit.errors import LockError
from kit.images import digest_cache, store
from kit.images.squash import sqshfile
from kit.schema.image import ImageLock


def check(lock: ImageLock, store_dir: Path, *, full: bool) -> Path:
    """The path of the locked image, after checking its digest. LockError names the command that restores the image.

    The digest is computed once for each file, about a second per gigabyte (`digest_cache.digest_file`); with full, again.
    """
    path = store.path(store_dir, lock.sha256)
    hint = f"run '{made_by(lock.name, lock.source)} --store {shlex.quote(str(store_dir))}'"
    if not path.is_file():
        raise LockError(f"image {lock.name}: {path} is not there", hint=hint)
    sqshfile.check(path, hint=hint)
    size = path.stat().st_size
    if size != lock.size:
        raise LockError(f"image {lock.name}: {path} has {size} bytes, and the lock says {lock.size}", hint=hint)
    require_digest(path, lock.sha256, what=f"image {lock.name}", hint=hint, full=full)
    return path


def require_digest(path: Path, sha256: str, *, what: str, hint: str, full: bool = False) -> None:
    """LockError with both digests if the file's digest is not `sha256` (64 hex digits)."""
    try:
        found = store.digest_of(path) if full else digest_cache.digest_file(path)
    except OSError as error:
        raise LockError(f"{what}: {path}: {error.strerror}", hint=hint) from None
    if found != sha256:
        raise LockError(
            f"{what}: {path} has the digest sha256:{found}, and the lock says sha256:{sha256}: it was damaged or replaced",
            hint=f"remove it, then {hint}",
        )


def made_by(name: str, source: str) -> str:
    """The command line that makes the image `name` from `source` (see ImageLock.source)."""
    return f"kit build-image {name}" if source == "build" else f"kit import-image {shlex.quote(source)} --name {name}"
