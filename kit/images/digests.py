"""Digests of image files, computed once: the same device, inode, size and times mean the same bytes.

What was computed is kept in a file of the user's own, one for each host, since device numbers are the host's. It may be deleted at
any time; it is not believed when somebody else owns it or may write it. ctime decides: every write changes it, nobody can set it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
import time
from pathlib import Path

import platformdirs

from kit import untrusted_files
from kit.errors import LockError
from kit.images import store

# What changed this recently could change again within the file system's own clock tick, and look the same.
_SETTLED_S = 2.0
# More than a user has images; the oldest lines go.
_MOST_LINES = 1000


def of(path: Path) -> str:
    """sha256 of a file, in hex: read whole the first time, and after every change. LockError when it changes meanwhile."""
    before = _key(path)
    memory = _memory()
    known = _load(memory)
    if before in known:
        return known[before]
    digest = store.digest_of(path)
    if _key(path) != before:
        raise LockError(f"{path} changed while it was read", hint="try again when nobody writes it")
    if time.time() - path.stat().st_ctime > _SETTLED_S:
        _add(memory, {**known, before: digest})
    return digest


def _key(path: Path) -> str:
    found = path.stat()
    return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def _memory() -> Path:
    return platformdirs.user_state_path("kit") / f"verified-{socket.gethostname()}"


def _load(memory: Path) -> dict[str, str]:
    try:
        with untrusted_files.open_regular(memory) as source:
            found = os.fstat(source.fileno())
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
                return {}
            lines = source.read(1 << 20).decode("ascii", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.rpartition(" ") for line in lines)
    return {key: digest for key, _, digest in pairs if len(digest) == 64}


def _add(memory: Path, known: dict[str, str]) -> None:
    text = "".join(f"{key} {digest}\n" for key, digest in [*known.items()][-_MOST_LINES:])
    # What cannot be remembered is read again.
    with contextlib.suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(prefix=f".{memory.name}.", dir=memory.parent)
        with os.fdopen(handle, "w", encoding="ascii") as sink:
            sink.write(text)
        Path(name).replace(memory)
