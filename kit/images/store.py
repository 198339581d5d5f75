"""The image store: `<store>/sha256/<hex>.sqsh`, complete or not there at all.

`sha256/` holds images, each with a `<hex>.json` of what is worth knowing and decides nothing. `tmp/` holds one folder per
builder, on the same filesystem, so that publishing is one rename. `locks/` holds the leases, and `refs/` the places of the
image.lock files that use this store.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kit.errors import ImageError
from kit.images import cross_host_lock, temporary_names
from kit.owning_process import Owner

# What a builder on another host left behind can only be judged by its age.
_FOREIGN_LEFTOVER_S = 24 * 3600.0

_DISK_TAKES_NO_MORE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
_NO_MODES = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
NO_SPACE = "free space (or inodes: 'df -i') on the store's filesystem, or name another store with --store"


def path(store: Path, sha256: str) -> Path:
    """Where the image with this digest (64 hex digits) is, or would be."""
    return store / "sha256" / f"{sha256}.sqsh"


def lock_file(store: Path, name: str) -> Path:
    """The lock under which the image `name` is made (see `lease.hold`)."""
    return store / "locks" / f"{name}.lock"


def prepare(store: Path) -> None:
    """Make the store's folders, readable as the store itself is, and remove what dead builders left.

    ImageError when the store cannot be written.
    """
    try:
        if not store.is_dir():
            store.mkdir(parents=True, mode=0o755)
        for name in ("sha256", "tmp", "locks", "refs"):
            folder = store / name
            if not folder.is_dir():
                folder.mkdir()
                # A shared store's owner decides who may write by the mode of the store itself, not by somebody's umask.
                # No sticky bit on locks: a dead user's lock is anybody's to take over, and costs its holder nothing but time.
                _chmod(folder, store.stat().st_mode & (0o6777 if name == "locks" else 0o7777))
        if not os.access(store / "tmp", os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ImageError(
            f"image store {store}: cannot be written: {error.strerror}",
            hint="name another with --store or KIT_STORE, or ask its owner for write permission",
        ) from None
    clean(store)


@contextlib.contextmanager
def workspace(store: Path) -> Iterator[Path]:
    """A private folder on the store's filesystem, removed on the way out; after a kill -9, by the next `clean`.

    ImageError when the block meets a disk that takes no more.
    """
    folder = store / "tmp" / f"{Owner.current()}~{secrets.token_hex(4)}"
    try:
        folder.mkdir(mode=0o700)
        yield folder
    except OSError as error:
        if error.errno not in _DISK_TAKES_NO_MORE:
            raise
        raise ImageError(f"image store {store}: {error.strerror}", hint=NO_SPACE) from None
    finally:
        temporary_names.remove(folder)


def clean(store: Path) -> list[Path]:
    """Remove the temporary folders, notes and locks of processes that are gone, as far as this user may; return the folders."""
    with contextlib.suppress(OSError):
        cross_host_lock.sweep(store / "locks")
    temporary_names.sweep(store / "refs")
    removed: list[Path] = []
    for folder in sorted((store / "tmp").glob("*")):
        owner = Owner.parse(folder.name.rpartition("~")[0])
        alive = owner.alive() if owner else None
        if alive is None:
            with contextlib.suppress(FileNotFoundError):
                alive = time.time() - folder.stat().st_mtime < _FOREIGN_LEFTOVER_S
        if not alive:
            temporary_names.remove(folder)
            removed.append(folder)
    return removed


def publish(store: Path, finished: Path, sha256: str, facts: Mapping[str, object]) -> Path:
    """Give a finished .sqsh its place in the store and return it.

    `finished` lies in a `workspace` of the same store and has been settled: it is on the disk before it is visible, and
    visible whole.
    """
    target = path(store, sha256)
    mode = 0o644 & store.stat().st_mode | 0o400
    _chmod(finished, mode)
    notes = finished.with_suffix(".json")
    notes.write_text(json.dumps(dict(facts), indent=1) + "\n", encoding="utf-8")
    _chmod(notes, mode)
    notes.rename(target.with_suffix(".json"))
    finished.rename(target)
    _sync(target.parent)
    return target


def register(store: Path, lock_file: Path) -> None:
    """Note that a lock uses this store, so that pruning knows of it whoever prunes; nothing happens without permission."""
    place = str(lock_file.absolute())
    note = store / "refs" / hashlib.sha256(place.encode()).hexdigest()[:32]
    with contextlib.suppress(OSError):
        if not note.is_file():
            with temporary_names.beside(note) as incoming:
                incoming.write_text(f"{place}\n", encoding="utf-8")
                incoming.rename(note)


def registered(store: Path) -> list[Path]:
    """The locks that were registered, as far as they still exist."""
    notes = sorted((store / "refs").glob("[0-9a-f]*")) if (store / "refs").is_dir() else []
    places = [Path(note.read_text(encoding="utf-8").rstrip("\n")) for note in notes]
    return [place for place in places if place.is_file()]


def settle(file: Path) -> str:
    """Bring a finished file to the disk while hashing it; its sha256, in hex."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        synced = pool.submit(_sync, file)
        digest = digest_of(file)
        synced.result()
    return digest


def digest_of(file: Path) -> str:
    """sha256 of a file, in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def facts(store: Path, sha256: str) -> dict[str, object]:
    """What `publish` noted about an image; empty when it is not there."""
    try:
        found = json.loads(path(store, sha256).with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _chmod(place: Path, mode: int) -> None:
    """Set the mode, where the file system has modes; `kit images --doctor` says what is unsafe about one that has not."""
    try:
        place.chmod(mode)
    except OSError as error:
        if error.errno not in _NO_MODES:
            raise


def _sync(place: Path) -> None:
    """fsync(2) of a file or a folder."""
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
