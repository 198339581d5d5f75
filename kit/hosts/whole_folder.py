"""Makes a folder under a temporary name that is renamed when it is complete, so that nobody sees a half-written run."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kit.errors import RunError
from kit.files import own_folders
from kit.files.owning_process import Owner

_PARTIAL = ".partial-"
# A process of another host or container may still run; that cannot be checked from here.
_FOREIGN_LEFTOVER_S = 24 * 3600.0


@contextlib.contextmanager
def make_whole(final: Path) -> Iterator[Path]:
    """A folder under a temporary name next to `final`. If the block succeeds, it is renamed to `final`; otherwise it is removed.

    RunError when `final` exists or the disk refuses.
    """
    if final.exists():
        raise RunError(
            f"{final}: this run folder exists already", hint="submit again: a run's id has the time in seconds"
        )
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _clean_leftovers(final.parent)
        _keep_from_others(final.parent)
        partial = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{Owner.current()}~", dir=final.parent))
        # Before anything is in it: what is made there inherits no ACL.
        own_folders.take(partial, 0o700)
    except OSError as error:
        raise RunError(
            f"{final.parent}: cannot be written: {error.strerror}", hint="set paths.runs of the cluster"
        ) from None
    before = os.umask(0o022)
    os.umask(before | 0o022)
    try:
        yield partial
        own_folders.take(partial, 0o755)
        partial.rename(final)
    except OSError as error:
        raise RunError(f"{final}: cannot be written: {error}") from None
    finally:
        os.umask(before)
        shutil.rmtree(partial, ignore_errors=True)


def remove(folder: Path) -> None:
    """Remove a run folder that was never submitted."""
    shutil.rmtree(folder, ignore_errors=True)


def _keep_from_others(runs_dir: Path) -> None:
    """Give a folder of runs that several users may write the sticky bit, if it is this user's.

    Without it, each of them could rename a waiting run of another, and put one of their own in its place.
    """
    seen = runs_dir.stat()
    if seen.st_uid == os.geteuid() and own_folders.replaceable_by(runs_dir):
        with contextlib.suppress(OSError):
            runs_dir.chmod(stat.S_IMODE(seen.st_mode) | stat.S_ISVTX)


def _clean_leftovers(parent: Path) -> None:
    """Remove leftovers of a killed `kit submit`: folders of dead processes on this host, and of other hosts after a day."""
    for left in parent.glob(f"{_PARTIAL}*"):
        with contextlib.suppress(OSError):
            owner = Owner.parse(left.name.removeprefix(_PARTIAL).rpartition("~")[0])
            alive = owner.alive() if owner else None
            if alive is None:
                alive = time.time() - left.stat().st_mtime < _FOREIGN_LEFTOVER_S
            if not alive:
                shutil.rmtree(left)
