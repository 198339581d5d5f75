"""A lock for `up` and `down`: commands for clusters in the same parent folder wait for each other.

The parent folder itself is locked, so there is no lock file. The lock ends with the process that holds it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.errors import SlurmError

_POLL_S = 0.1


@contextmanager
def held(folder: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold the lock of the cluster in `folder`. SlurmError if another command holds it for longer than timeout_s."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + timeout_s
        while not _try(descriptor):
            if time.monotonic() > deadline:
                raise SlurmError(
                    f"{folder.parent}: another `kit cluster` command has been at work for {timeout_s:g} s",
                    hint="the same command when that one has ended",
                )
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
