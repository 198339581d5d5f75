"""Digests of image files, each computed once: the same device, inode, size and times mean the same bytes.

Known digests are kept in a file of the user. Each host has its own file, since device numbers belong to the host. The file may be
deleted at any time. It is ignored when another user owns it or may write it. ctime is the safe part: every write changes it, and no
user can set it.
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

from kit.errors import LockError
from kit.files import untrusted_files
from kit.images import store

# A file that changed more recently could change again within one clock tick of the file system and keep its times.
_SETTLED_S = 2.0
# More images than a user has. The oldest lines are removed.
_MOST_LINES = 1000


def digest_file(path: Path) -> str:
    """sha256 of a file, in hex. The file is read the first time, and after every change. LockError when it changes meanwhile."""
    before = _key(path)
    memory = _memory()
    known = _load(memory)
    if before in known:
        return known[before]
    digest = store.digest_of(path)
    if _key(path) != before:
        raise LockError(f"{path} changed while it was read", hint="the same command when nobody writes to the file")
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
    # If the digest cannot be saved, it is computed again next time.
    with contextlib.suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(prefix=f".{memory.name}.", dir=memory.parent)
        with os.fdopen(handle, "w", encoding="ascii") as sink:
            sink.write(text)
        Path(name).replace(memory)
