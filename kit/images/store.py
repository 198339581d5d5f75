"""The image store: `<store>/sha256/<hex>.sqsh`. A file there is always complete.

`sha256/` holds images, each with a `<hex>.json` of facts for people and a `<hex>.blocks` with the digests of its blocks. `tmp/`
holds one folder per builder on the same filesystem, so that publishing is one rename. `locks/` holds the locks of images that are
being made. `refs/` holds the paths of the image.lock files that use this store.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kit.errors import ImageError
from kit.files import atomic_write, cross_host_lock, own_folders, temporary_names, untrusted_files
from kit.files.owning_process import Owner
from kit.images import block_list
from kit.schema.image import ImageLock

# Leftovers of a builder on another host can only be judged by their age.
_FOREIGN_LEFTOVER_S = 24 * 3600.0

# Bytes of the facts about an image.
_MOST_FACTS = 1 << 20
_DISK_TAKES_NO_MORE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
_NO_MODES = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
NO_SPACE = "free space (or inodes: 'df -i') on the store's filesystem, or name another store with --store"


def path(store: Path, sha256: str) -> Path:
    """The path of the image with this digest (64 hex digits), whether it exists or not."""
    return store / "sha256" / f"{sha256}.sqsh"


def lacks_built(store: Path, lock: ImageLock) -> bool:
    """Whether the store lacks an image that `kit build-image` can make again. Imported images are not counted."""
    return lock.source == "build" and not path(store, lock.sha256).is_file()


def lock_file(store: Path, name: str) -> Path:
    """The lock that a process holds while it makes the image `name` (see `cross_host_lock.hold`)."""
    return store / "locks" / f"{name}.lock"


def prepare_store(store: Path) -> None:
    """Make the store's folders with the store's own mode, and remove leftovers of dead builders.

    ImageError when the store cannot be written.
    """
    try:
        store.mkdir(parents=True, mode=0o755, exist_ok=True)
        for name in ("sha256", "tmp", "locks", "refs"):
            folder = store / name
            if _made(folder):
                # In a shared store, the mode of the store itself decides who may write, not a user's umask. `locks` has no sticky
                # bit: any user may take over a dead user's lock, and that costs only time.
                _chmod(folder, store.stat().st_mode & (0o6777 if name == "locks" else 0o7777))
        if not os.access(store / "tmp", os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ImageError(
            f"image store {store}: cannot be written: {error.strerror}",
            hint="name another with --store or KIT_STORE, or ask its owner for write permission",
        ) from None
    clean(store)


def _made(folder: Path) -> bool:
    """Make a folder. Returns whether this process did: another one may make it at the same time."""
    try:
        folder.mkdir()
    except FileExistsError:
        seen = folder.lstat()
        if stat.S_ISLNK(seen.st_mode) and (who := own_folders.user_if_stranger(seen.st_uid)):
            raise NotADirectoryError(errno.ENOTDIR, f"{folder} is a link that {who} has made: remove it") from None
        if folder.is_dir():
            return False
        raise
    return True


@contextlib.contextmanager
def workspace(store: Path) -> Iterator[Path]:
    """A private folder on the store's filesystem, removed at the end of the block or, after kill -9, by the next `clean`.

    ImageError when the disk is full or fails during the block.
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
    """Remove the temporary folders, notes and locks of dead processes, if this user may; return the folders.

    No link is followed: whoever made `tmp` could replace it with a link, and files of this user are old, too.
    """
    with contextlib.suppress(OSError), own_folders.entered(store / "locks") as locks:
        cross_host_lock.sweep(locks)
    with contextlib.suppress(OSError), own_folders.entered(store / "refs") as refs:
        temporary_names.sweep(refs)
    with contextlib.suppress(OSError), own_folders.entered(store / "tmp") as place:
        return [store / "tmp" / name for name in _clean_tmp(place)]
    return []


def _clean_tmp(place: Path) -> list[str]:
    """The names of the folders that were removed."""
    removed = list[str]()
    for folder in sorted(place.iterdir()):
        owner = Owner.parse(folder.name.rpartition("~")[0])
        alive = owner.alive() if owner else None
        if alive is None:
            with contextlib.suppress(FileNotFoundError):
                alive = time.time() - folder.lstat().st_mtime < _FOREIGN_LEFTOVER_S
        if not alive:
            temporary_names.remove(folder)
            removed.append(folder.name)
    return removed


def publish(store: Path, finished: Path, sha256: str, facts: Mapping[str, object]) -> Path:
    """Move a finished .sqsh to its place in the store and return its path.

    `finished` is in a `workspace` of the same store and was passed to `settle`: the file is complete on disk before it becomes
    visible.
    """
    target = path(store, sha256)
    mode = 0o644 & store.stat().st_mode | 0o400
    _chmod(finished, mode)
    notes = finished.with_suffix(".json")
    notes.write_text(json.dumps(dict(facts), indent=1) + "\n", encoding="utf-8")
    _chmod(notes, mode)
    blocks = finished.with_suffix(block_list.SUFFIX)
    blocks.write_text(block_list.text(finished, sha256), encoding="ascii")
    _chmod(blocks, mode)
    try:
        blocks.rename(target.with_suffix(block_list.SUFFIX))
        notes.rename(target.with_suffix(".json"))
        finished.rename(target)
    except PermissionError as error:
        # In a folder with the sticky bit, only its owner and root replace a file of wrong bytes.
        owner = own_folders.user(target.lstat().st_uid) if os.path.lexists(target) else "another user"
        raise ImageError(
            f"{target} belongs to {owner}, and you may not replace it: {error.strerror}",
            hint=f"let root remove {target}",
        ) from None
    atomic_write.sync(target.parent)
    return target


def register(store: Path, lock_file: Path) -> None:
    """Record in the store that this lock uses it, so that pruning keeps its image. Without permission to write, do nothing."""
    place = str(lock_file.absolute())
    note = store / "refs" / hashlib.sha256(place.encode()).hexdigest()[:32]
    with contextlib.suppress(OSError):
        if not note.is_file():
            with temporary_names.beside(note) as incoming:
                incoming.write_text(f"{place}\n", encoding="utf-8")
                # A note that others cannot read, by this user's umask, would stop their prune.
                _chmod(incoming, 0o644 & store.stat().st_mode | 0o400)
                incoming.rename(note)


def settle(file: Path) -> str:
    """Write a finished file to disk (fsync) while hashing it; return its sha256, in hex."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        synced = pool.submit(atomic_write.sync, file)
        digest = digest_of(file)
        synced.result()
    return digest


def digest_of(file: Path) -> str:
    """sha256 of a file, in hex."""
    with untrusted_files.open_regular(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def facts(store: Path, sha256: str) -> dict[str, object]:
    """The facts that `publish` wrote about an image; empty if there are none."""
    try:
        found = json.loads(untrusted_files.read_bytes(path(store, sha256).with_suffix(".json"), most=_MOST_FACTS))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _chmod(place: Path, mode: int) -> None:
    """Set the mode, if the file system has modes. `kit images --doctor` reports what is unsafe on one without."""
    try:
        place.chmod(mode)
    except OSError as error:
        if error.errno not in _NO_MODES:
            raise
