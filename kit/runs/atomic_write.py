"""Writes a file so that a reader sees the old text or the new one, never a part."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write(path: Path, text: str, *, durable: bool = True, mode: int = 0o644) -> None:
    """Temporary name, then rename. durable: on the disk before the name is, so that a power cut leaves the old or the new.

    mode: whatever the umask says. The temporary name is one that no process of another host has.
    """
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
