"""Writes that survive a power loss of the machine."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Flush a file's bytes, or a folder's names, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
