"""Writes a file atomically: a reader sees the old text or the new text, never a mixture."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def sync(path: Path) -> None:
    """fsync(2) of a file or a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write(path: Path, text: str, *, durable: bool = True, mode: int = 0o644) -> None:
    """Write a temporary file, then rename it. durable: sync it to disk before the rename, so that a power cut leaves the old or the
    new text.

    mode: independent of the umask. The temporary name is unique among all processes and hosts.
    """
    import tempfile  # it brings Python's random numbers; what only looks needs neither

    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as sink:
            os.fchmod(sink.fileno(), mode)
            sink.write(text)
            if durable:
                sink.flush()
                os.fsync(sink.fileno())
        temporary.rename(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
