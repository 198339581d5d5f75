"""Makes a run folder from a plan, under a temporary name that is renamed when it is complete, so that nobody sees a half-written
run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kit.errors import RunError
from kit.files import own_folders, untrusted_files
from kit.files.owning_process import Owner
from kit.planning.plan import Plan
from kit.record import secret
from kit.record.manifest import Manifest
from kit.schema.run_paths import RunPaths
from kit.submit import link_py_spy, workspace

_PARTIAL = ".partial-"
# A process of another host or container may still run; that cannot be checked from here.
_FOREIGN_LEFTOVER_S = 24 * 3600.0


def create(plan: Plan, manifest: Manifest, *, secrets: Mapping[str, str] | None = None, patch: str = "") -> RunPaths:
    """Write the run folder of `plan`. patch: the difference of its workspace. RunError when it exists or the disk refuses."""
    with whole(plan.run_dir) as partial:
        fill(partial, plan, manifest, secrets=secrets, patch=patch)
        link_py_spy.link(partial, plan.run_dir.parent)
    return RunPaths(plan.run_dir)


@contextlib.contextmanager
def whole(final: Path) -> Iterator[Path]:
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


@dataclass(frozen=True)
class Like:
    """A complete run folder. Another one gets hard links to its files where these are the same."""

    plan: Plan
    folder: Path


def fill(
    folder: Path,
    plan: Plan,
    manifest: Manifest,
    *,
    secrets: Mapping[str, str] | None = None,
    like: Like | None = None,
    durable: bool = True,
    patch: str = "",
) -> None:
    """Write all initial files of a run into `folder`; files of an earlier start are replaced. durable: as in Manifest.write.

    patch: the difference between its workspace and the commit.
    """
    write_files(plan, folder, like=like)
    for _, name in plan.copies:
        shutil.rmtree(folder / name, ignore_errors=True)
    for source, name in plan.copies:
        if like is None or like.plan.copies != plan.copies:
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(
                source,
                folder / name,
                dirs_exist_ok=True,
                ignore=ignore,
                copy_function=untrusted_files.copy_sharing_blocks,
            )
        elif not (folder / name).exists():
            shutil.copytree(like.folder / name, folder / name, copy_function=_link)
    for name in plan.folders:
        (folder / name).mkdir(parents=True, exist_ok=True)
    workspace.fill(plan, folder)
    if patch:
        path = RunPaths(folder).patch
        path.unlink(missing_ok=True)
        if like:
            _link(RunPaths(like.folder).patch, path)
        else:
            path.write_text(patch, encoding="utf-8", errors="surrogateescape")
            path.chmod(0o600)
    manifest.write(RunPaths(folder).manifest, durable=durable)
    secret.write(folder, secrets or {})


def write_files(plan: Plan, folder: Path, *, like: Like | None = None) -> list[Path]:
    """Write the plan's files under `folder` and return their paths. An existing file is replaced, not overwritten in place."""
    fresh = not folder.is_dir() or not any(folder.iterdir())
    for name in dict.fromkeys(file.name.rpartition("/")[0] for file in plan.files):
        (folder / name).mkdir(parents=True, exist_ok=True)
    shared = {file.name: file for file in like.plan.files} if like else {}
    written = []
    for file in plan.files:
        path = folder / file.name
        if not fresh:
            path.unlink(missing_ok=True)
        if like and shared.get(file.name) == file:
            _link(like.folder / file.name, path)
        else:
            untrusted_files.write_text(path, file.text)
            path.chmod(file.mode)
        written.append(path)
    return written


def _link(source: str | Path, target: str | Path) -> str | Path:
    """Make a hard link, or a copy on file systems without links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def remove(run_dir: Path) -> None:
    """Remove a run folder that was never submitted."""
    shutil.rmtree(run_dir, ignore_errors=True)


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
