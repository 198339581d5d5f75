"""Writes a file so that a reader sees the old text or the new one, never a part."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write(path: Path, text: str, *, durable: bool = True) -> None:
    """Temporary name, then rename. durable: on the disk before the name is, so that a power cut leaves the old or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as sink:
            sink.write(text)
            if durable:
                sink.flush()
                os.fsync(sink.fileno())
        temporary.rename(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
