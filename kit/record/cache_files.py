"""Small caches in the user's cache folder. Each is one file, `KIND-DIGEST.json`, with the digest of the path that it belongs to.

They may be deleted at any time. The file of a removed project or sweep would stay for ever, and a home folder often has a quota. So
each new file removes files of its kind that were not written for 90 days, and all but the 200 that were written last.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

import platformdirs

from kit.files import atomic_write

_UNUSED_S = 90 * 24 * 3600
# More run folders and sweeps than a person looks at in a month; a file is some kilobytes to a megabyte.
_MOST = 200


def place(kind: str, belongs_to: Path | str) -> Path:
    """The cache file of this kind for a path. kind: letters only."""
    digest = hashlib.sha256(str(belongs_to).encode(errors="surrogateescape")).hexdigest()[:16]
    return platformdirs.user_cache_path("kit") / f"{kind}-{digest}.json"


def halves() -> Path:
    """The folder of notes about halves of trainings that may have to be cancelled: kit/submission/lone_halves.py."""
    return platformdirs.user_cache_path("kit") / "halves"


def write(path: Path, text: str) -> None:
    """Replace the text of a cache file. If it cannot be written (full disk, read-only home), do nothing: a cache may be missing."""
    with contextlib.suppress(OSError):
        first = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write.write(path, text, durable=False, mode=0o600)
        if first:
            _remove_unused(path.parent, path.name.rpartition("-")[0])


def _remove_unused(folder: Path, kind: str) -> None:
    written: list[tuple[float, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(f"{kind}-") and entry.name.endswith(".json"):
                # Another command may remove it at the same time.
                with contextlib.suppress(OSError):
                    written.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
    written.sort(reverse=True)
    oldest = time.time() - _UNUSED_S
    for place, (when, path) in enumerate(written):
        if place >= _MOST or when < oldest:
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108 - of thousands
