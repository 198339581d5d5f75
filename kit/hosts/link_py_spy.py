"""Gives runs py-spy: its static binary, if it is installed with the kit (extra `stacks`), is stored once next to the runs."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from kit.schema.run_paths import RunPaths

_FOLDER = ".tools"


def link(run_dir: Path, runs_dir: Path) -> None:
    """Link py-spy as `bin/py-spy` in the run folder, where evidence.sh runs it outside the container.

    Do nothing if it is not installed.
    """
    try:
        found = _kept(runs_dir)
    except OSError:
        # Evidence of stacks can be gathered in other ways.
        return
    if found is not None:
        path = RunPaths(run_dir).bin / "py-spy"
        path.unlink(missing_ok=True)
        path.symlink_to(found)


def _kept(runs_dir: Path) -> Path | None:
    """The copy that all runs of this user share; created if it is missing. None if another user could have written it."""
    source = Path(sys.executable).parent / "py-spy"
    try:
        version = metadata.version("py-spy")
    except metadata.PackageNotFoundError:
        return None
    if not source.is_file():
        return None
    folder = runs_dir.absolute() / f"{_FOLDER}-{os.geteuid()}"
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    kept = folder / f"py-spy-{version}"
    if not _mine(folder):
        return None
    if not kept.exists():
        descriptor, name = tempfile.mkstemp(dir=folder, suffix=".partial")
        os.close(descriptor)
        shutil.copyfile(source, name)
        new = Path(name)
        new.chmod(0o555)
        new.replace(kept)
    return kept if _mine(kept) else None


def _mine(path: Path) -> bool:
    found = path.lstat()
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
