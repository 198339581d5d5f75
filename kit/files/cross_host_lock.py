"""A lock that holds across hosts on a shared filesystem.

On some mounts flock is local to a host (NFS without a lock daemon, Lustre without `-o flock`), so the lock is a file that link(2)
creates. link(2) is atomic on all of them. On a file system without hard links (exFAT, some FUSE mounts), open(2) with O_EXCL
creates the file. The file names the owner. The lock of a dead owner is taken over: at once on the same host, and after `_STALE_S`
without a heartbeat on another host.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kit.errors import ImageError
from kit.files import repeating_thread, temporary_names, untrusted_files
from kit.files.owning_process import Owner

_HEARTBEAT_S = 10.0
_STALE_S = 120.0
_POLL_S = 0.1
# Bytes of an owner's identity, with the longest name of a host.
_MOST_BYTES = 4096
# Error numbers of file systems without hard links: exFAT and FAT, FUSE mounts, others.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES})


@contextlib.contextmanager
def hold(path: Path, *, on_wait: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Hold the lock `path` for the block. Wait while a living process holds it.

    on_wait is called once with the holder's name if the lock is taken. ImageError when the folder cannot be written.
    """
    claim = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        claim.write_text(f"{Owner.current()}\n", encoding="utf-8")
    except OSError as error:
        raise ImageError(
            f"{path.parent}: cannot be written: {error.strerror}", hint="name another store with --store"
        ) from None
    try:
        _take(path, claim, on_wait)
        with repeating_thread.every(_HEARTBEAT_S, partial(_beat, path, claim), name="lease"):
            yield
    finally:
        # Another process may have taken the lock over; then it is not ours to remove.
        with contextlib.suppress(FileNotFoundError):
            if _same(path, claim):
                path.unlink()
        claim.unlink(missing_ok=True)


def _same(path: Path, claim: Path) -> bool:
    """Whether the lock belongs to this claim: the same inode or, without hard links, the same text."""
    return os.path.samestat(path.lstat(), claim.lstat()) or ((text := _text(path)) != "" and text == _text(claim))


def _text(path: Path) -> str:
    """The text of a lock; empty for a file that cannot be read, or that no kit wrote: every user of a store makes locks."""
    try:
        return untrusted_files.read_text(path, most=_MOST_BYTES)
    except OSError:
        return ""


def sweep(folder: Path) -> None:
    """Remove the locks and claims of dead processes from a folder of locks."""
    for path in folder.iterdir():
        owner = Owner.parse(_text(path))
        if owner is not None and owner.alive() is False:
            with contextlib.suppress(ImageError):
                _break(path)


def _take(path: Path, claim: Path, on_wait: Callable[[str], None]) -> None:
    announced = False
    while True:
        with contextlib.suppress(FileExistsError):
            _put(claim, path)
            return
        if _stale(path, claim):
            _break(path)
            continue
        if not announced:
            on_wait(_holder(path))
            announced = True
        time.sleep(_POLL_S)


def _put(claim: Path, path: Path) -> None:
    """Create the lock atomically. FileExistsError if it exists."""
    try:
        os.link(claim, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # The file is empty for a moment. A reader then takes it for a lock of a living process.
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        with os.fdopen(handle, "wb") as out:
            out.write(claim.read_bytes())


def _stale(path: Path, claim: Path) -> bool:
    try:
        owner = Owner.parse(_text(path))
        age = _now(claim) - path.lstat().st_mtime
    except FileNotFoundError:
        return False
    alive = owner.alive() if owner else None
    return age > _STALE_S if alive is None else not alive


def _break(path: Path) -> None:
    # Two waiting processes may arrive here at once. Each renames the file that it finds, and the second may remove the first one's
    # new lock. Then two builders work at the same time. That costs time only: the store is addressed by content.
    grave = path.with_name(f".{path.name}.{secrets.token_hex(6)}.stale")
    try:
        path.rename(grave)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ImageError(f"{path}: cannot be removed: {error.strerror}", hint=f"ls -ld {path}") from None
    temporary_names.remove(grave)


def _holder(path: Path) -> str:
    owner = Owner.parse(_text(path))
    return f"process {owner.pid} on {owner.host}" if owner else "another process"


def _now(claim: Path) -> float:
    # The file server's clock, not this host's: ages are compared with times that the server wrote.
    os.utime(claim)
    return claim.stat().st_mtime


def _beat(path: Path, claim: Path) -> None:
    with contextlib.suppress(OSError):
        os.utime(claim)
        if not os.path.samestat(path.lstat(), claim.lstat()) and _same(path, claim):
            os.utime(path)
