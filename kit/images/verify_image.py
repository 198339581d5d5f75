"""`kit verify-image`: an image file against its lock, or a lock against a build from nothing."""

from __future__ import annotations

from pathlib import Path

from kit import data_folders
from kit.errors import LockError, UsageError
from kit.images import build, lock, sqshfile, store, verify
from kit.images.progress import Report
from kit.spec.image import ImageLock


def checked(image: str, *, project: Path, store: Path, full: bool) -> str:
    """Check an image by name, or a .sqsh by path, and say in one line what was checked. LockError when it is not right."""
    path = Path(image)
    if image.endswith(".sqsh") or "/" in image:
        return _checked_file(path, full=full)
    locked = _lock_of(image, project)
    found = verify.check(locked, store, full=full)
    return f"{image}  {locked.digest}  {'sha256' if full else 'superblock and size'} right  {found}"


def rebuilt(name: str, *, project: Path, store: Path, report: Report) -> str:
    """Build an image from nothing and hold the result to its lock; one line when the bytes are the same.

    LockError, naming what changed, when they are not.
    """
    locked = _lock_of(name, project)
    if locked.source != "build":
        raise UsageError(f"image {name} was imported from {locked.source}", hint="only a build can be repeated")
    order = build.Order(name=name, project=project, store=store, locked=True, fresh=True)
    outcome = build.build(order, report)
    return f"{name}  {locked.digest}  built again from nothing in {outcome.seconds:.0f} s: the same bytes"


def _checked_file(path: Path, *, full: bool) -> str:
    sqshfile.check(path)
    if not full:
        return f"{path}  superblock and size right"
    digest = store.digest_of(path)
    # A file of a store is named by its digest; any other file has only its digest to tell.
    if path.parent.name == "sha256" and path.stem != digest:
        raise LockError(f"{path}: has the digest sha256:{digest}: it is damaged", hint="remove it, then make it again")
    return f"{path}  sha256:{digest}"


def _lock_of(name: str, project: Path) -> ImageLock:
    place = lock.find(name, project=project)
    if place is None:
        data_folders.find("containers", name, project_dir=project, key="image")
        raise LockError(f"image {name} has no lock", hint=f"run 'kit build-image {name}'")
    return lock.read(place)
