"""py-spy for the nodes: its static binary, where it is installed beside the kit (extra `stacks`), is kept once beside the runs."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from kit.spec.run_paths import RunPaths

_FOLDER = ".tools"


def link(run_dir: Path, runs_dir: Path) -> None:
    """Give the run folder `bin/py-spy`, which evidence.sh runs on the nodes, outside the container. Nothing where there is none."""
    try:
        found = _kept(runs_dir)
    except OSError:
        # Evidence has other ways to a stack.
        return
    if found is not None:
        path = RunPaths(run_dir).bin / "py-spy"
        path.unlink(missing_ok=True)
        path.symlink_to(found)


def _kept(runs_dir: Path) -> Path | None:
    """The copy that all runs of this user share; made when it is not there. None where somebody else could have written it."""
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
