"""`kit verify-image`: checks an image file against its lock, or a lock against a new build."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kit import data_folders
from kit.errors import LockError, UsageError
from kit.images import check_against_lock, image_lock, store
from kit.images.build import build
from kit.images.progress import ProgressReporter
from kit.images.squash import sqshfile
from kit.schema.image import ImageLock


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A successful check. image: its name or path as given. digest: `sha256:<hex>`; empty if it was not computed."""

    image: str
    digest: str
    checked: str
    path: str = ""

    def __str__(self) -> str:
        return "  ".join(part for part in (self.image, self.digest, self.checked, self.path) if part)


def checked(image: str, *, project: Path, store: Path, full: bool) -> Verified:
    """Check an image by name, or a .sqsh by path. LockError when the check fails."""
    path = Path(image)
    if image.endswith(".sqsh") or "/" in image:
        return _checked_file(path, full=full)
    locked = _lock_of(image, project)
    found = check_against_lock.check(locked, store, full=full)
    what = "sha256 right" if full else "superblock, size and sha256 right"
    return Verified(image=image, digest=locked.digest, checked=what, path=str(found))


def rebuilt(name: str, *, project: Path, store: Path, report: ProgressReporter) -> Verified:
    """Build an image from nothing and compare the result with its lock.

    LockError, naming what changed, when they differ.
    """
    locked = _lock_of(name, project)
    if locked.source != "build":
        raise UsageError(f"image {name} was imported from {locked.source}", hint="only a build can be repeated")
    order = build.BuildOrder(name=name, project=project, store=store, locked=True, fresh=True)
    outcome = build.build(order, report)
    what = f"built again from nothing in {outcome.seconds:.0f} s: the same bytes"
    return Verified(image=name, digest=locked.digest, checked=what)


def _checked_file(path: Path, *, full: bool) -> Verified:
    sqshfile.check(path)
    if not full:
        return Verified(image=str(path), digest="", checked="superblock and size right")
    digest = store.digest_of(path)
    # A file in a store is named by its digest, so compare the two. For any other file just report the digest.
    if path.parent.name == "sha256" and path.stem != digest:
        raise LockError(f"{path}: has the digest sha256:{digest}: it is damaged", hint="remove it, then make it again")
    return Verified(image=str(path), digest=f"sha256:{digest}", checked="")


def _lock_of(name: str, project: Path) -> ImageLock:
    place = image_lock.find(name, project=project)
    if place is None:
        data_folders.find("containers", name, project_dir=project, key="image")
        raise LockError(f"image {name} has no lock", hint=f"run 'kit build-image {name}'")
    return image_lock.read_lock(place)
