"""Refuses to do what the record of another user's run says.

Anybody who may write a shared folder of runs can put a folder there, with a manifest that names another job, or another program.
"""

from __future__ import annotations

import os
from pathlib import Path

from kit.errors import RunError
from kit.files import own_folders


def require(run_dir: Path, *, to: str) -> None:
    """RunError if the run is another user's. to: what is about to be done, such as "cancel its job"."""
    folder = run_dir
    # A point of a sweep may have no folder yet.
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    seen = folder.lstat()
    if seen.st_uid != os.geteuid():
        owner = own_folders.user(seen.st_uid)
        raise RunError(f"run {run_dir.name} belongs to {owner}: only its owner can {to}", hint=f"ask {owner}")
