"""Writing that lasts: what a machine that loses its power still has afterwards."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Have a file's bytes, or a folder's names, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
