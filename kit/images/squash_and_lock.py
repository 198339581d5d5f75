"""The last part of every build and import: squash the content, compare with the lock, publish the image, write the lock."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kit.errors import ImageError, LockError
from kit.images import check_against_lock, difference, image_lock, store
from kit.images.progress import ProgressReporter
from kit.images.squash import enroot_layout, installed_packages, sqshfile, squash
from kit.images.squash.squash import Finished, TarStream, Tree
from kit.schema.image import ImageConfig, ImageLock, LockedBase, LockedTools, Squash
from kit.version import __version__

_STALE = (
    "Python byte code in this image is checked against its source's time, which is 0 here: every rank compiles it again at "
    "start. End the Dockerfile's RUN with: python3 -m compileall -q -f --invalidation-mode unchecked-hash FOLDER"
)

# An error lists this many files.
_NAMED = 20

Way = Callable[[], contextlib.AbstractContextManager[Tree | TarStream | Finished]]


@dataclass(frozen=True, kw_only=True)
class Target:
    """The image to make.

    source: `build`, or the URI to import. inputs: sha256 (hex) of everything that determines the bytes. locked: fail if the result
    does not match the lock, and leave lock and store unchanged. relock: write the lock even if the same inputs gave other bytes.
    notes: for the lock; reasons why another build may give other bytes. context: see ImageLock. lock_file: where a lock is
    written. shipped: the lock that counts while that file does not exist.
    """

    name: str
    store: Path
    lock_file: Path
    shipped: Path | None = None
    source: str
    inputs: str
    squash: Squash
    locked: bool = False
    relock: bool = False
    notes: tuple[str, ...] = ()
    context: str | None = None

    @property
    def current_file(self) -> Path | None:
        """The lock that counts now."""
        return self.lock_file if self.lock_file.is_file() else self.shipped

    @property
    def current(self) -> ImageLock | None:
        """The lock as it is now."""
        return image_lock.read_lock(self.current_file) if self.current_file else None

    @property
    def command(self) -> str:
        """The command that makes the image."""
        return check_against_lock.made_by(self.name, self.source)


@dataclass(frozen=True, kw_only=True)
class Content:
    """Content that is ready to be squashed.

    ways: each gives the tree, tar stream or file for the length of a block, fastest first; all give the same bytes. size:
    approximate, in bytes, for progress. kind, reference, digest: the base (see LockedBase); without a digest, the .sqsh's own is
    used. provenance: for /etc/rc, the same on every machine. noise: patterns to leave out in addition to those that are always left
    out. keep_times: see squash.Options. engine, image_id: for the lock, if an engine was used. notes: in addition to the target's.
    platform: see ImageLock.
    """

    ways: tuple[Way, ...]
    size: int
    config: ImageConfig
    kind: Literal["bootstrap", "reference", "image", "import"]
    reference: str
    provenance: str = "local"
    digest: str = ""
    noise: tuple[str, ...] = ()
    keep_times: bool = False
    engine: str = ""
    image_id: str = ""
    notes: tuple[str, ...] = ()
    platform: str | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result. built: False if nothing had changed. changes: differences between the old and the new lock. seconds: wall
    time."""

    lock: ImageLock
    lock_file: Path
    image: Path
    built: bool
    method: str = ""
    changes: tuple[str, ...] = ()
    seconds: float = 0.0


def unchanged(target: Target) -> Outcome | None:
    """The existing image, if it was made from the same inputs and has the bytes of its lock; else None.

    A file that is damaged or replaced is made again. The digest is computed once for each file (`digests.digest_file`).
    """
    lock_file, locked = target.current_file, target.current
    if lock_file is None or locked is None or locked.inputs != target.inputs:
        return None
    try:
        image = check_against_lock.check(locked, target.store, full=False)
    except LockError:
        return None
    store.register(target.store, lock_file)
    return Outcome(lock=locked, lock_file=lock_file, image=image, built=False)


def make(target: Target, content: Content, work: Path, report: ProgressReporter) -> Outcome:
    """Squash, compare, publish, lock. work: a workspace of the target's store.

    LockError in two cases: the target is locked and the bytes differ; or the same inputs gave other bytes and `relock` is not set.
    Then the lock stays, and in the second case the new image is in the store for inspection. ImageError when squashing fails.
    """
    finished = work / "image.sqsh"
    method = _squash(target, content, finished, report)
    report.stage("checking and locking")
    new = _lock(target, content, finished, method)
    old = target.current
    if old is not None and not target.relock and _is_base_of(old, new):
        new = new.model_copy(update={"base": old.base})
    changes = tuple(image_lock.differences(old, new)) if old else ()
    if target.locked:
        _must_be_locked(target, old, new, changes)
    facts = {"name": target.name, "source": target.source, "method": method, "made": time.time()}
    image = store.publish(target.store, finished, new.sha256, facts)
    if old is not None and not target.relock and _same_bytes_expected(old, new, content) and old.sha256 != new.sha256:
        raise _not_reproducible(target, old, new, changes)
    lock_file = (old and image_lock.is_same(old, new) and target.current_file) or target.lock_file
    image_lock.write_lock(lock_file, new)
    store.register(target.store, lock_file)
    for warning in enroot_layout.warnings(content.config):
        report.warn(warning)
    if not content.keep_times and installed_packages.has_stale_bytecode(image, work):
        report.warn(_STALE)
    return Outcome(lock=new, lock_file=lock_file, image=image, built=True, method=method, changes=changes)


def _squash(target: Target, content: Content, finished: Path, report: ProgressReporter) -> str:
    """Write the .sqsh by the first way that this machine allows; return the name of that way."""
    edit = enroot_layout.edit(content.config, provenance=content.provenance, noise=content.noise)
    options = squash.Options(squash=target.squash, keep_times=content.keep_times)
    for way in content.ways:
        with way() as source, report.counting(f"squashing by {source.method}", content.size) as advance:
            try:
                lost = squash.write_squashfs(source, edit, finished, options, on_bytes=advance)
            except squash.AnotherWayError as error:
                report.warn(f"{error.message}; taking a slower way")
            else:
                if lost:
                    report.warn(lost)
                return source.method
    raise ImageError(
        "this image can only be read through a mount, which is not possible here", hint="import it from an engine"
    )


def _lock(target: Target, content: Content, finished: Path, method: str) -> ImageLock:
    _, version = squash.mksquashfs()
    sha256 = store.settle(finished)
    base = LockedBase(kind=content.kind, reference=content.reference, digest=content.digest or f"sha256:{sha256}")
    return ImageLock(
        name=target.name,
        sha256=sha256,
        size=finished.stat().st_size,
        platform=content.platform,
        source=target.source,
        inputs=target.inputs,
        context=target.context,
        reproducible=not (target.notes or content.notes),
        notes=(*target.notes, *content.notes),
        base=base,
        squash=sqshfile.options(finished) if method == Finished.method else target.squash,
        config=content.config,
        tools=LockedTools(kit=__version__, mksquashfs=version, engine=content.engine, image_id=content.image_id),
        packages=installed_packages.packages(finished),
    )


def _is_base_of(old: ImageLock, new: ImageLock) -> bool:
    """Whether the engine's base is the lock's under another digest: one that was loaded or built again has none of its registry,
    by which a build elsewhere finds it.
    """
    return new.base.kind == "reference" and (old.inputs, old.sha256) == (new.inputs, new.sha256)


def _same_bytes_expected(old: ImageLock, new: ImageLock, content: Content) -> bool:
    """Whether the inputs are the same and determine the bytes. An imported folder has no digest that identifies it."""
    return old.inputs == new.inputs and old.reproducible and new.reproducible and bool(content.digest)


def _not_reproducible(target: Target, old: ImageLock, new: ImageLock, changes: tuple[str, ...]) -> LockError:
    causes = [f"  {change}" for change in changes if not change.startswith(("sha256:", "size:"))]
    before = store.path(target.store, old.sha256)
    if before.is_file():
        found = difference.files(before, store.path(target.store, new.sha256))
        causes += [f"  {line}" for line in found[:_NAMED]]
        causes += [f"  and {len(found) - _NAMED} more"] if len(found) > _NAMED else []
    else:
        causes.append("  the locked image is not in the store: its files cannot be compared")
    lines = "\n".join(causes)
    return LockError(
        f"image {target.name}: the same inputs gave other bytes, and the lock was not changed; built sha256:{new.sha256}, "
        f"locked sha256:{old.sha256}; these files differ:\n{lines}",
        hint=f"kit diff-images {target.name} {new.sha256[:12]} shows all differences; "
        f"'{target.command} --relock' writes the new digest to the lock",
    )


def _must_be_locked(target: Target, old: ImageLock | None, new: ImageLock, changes: tuple[str, ...]) -> None:
    if old is None:
        raise LockError(
            f"image {target.name} has no lock to compare with", hint=f"run '{target.command}' without --locked"
        )
    if old.sha256 == new.sha256:
        return
    causes = [change for change in changes if not change.startswith(("sha256:", "size:"))]
    if old.inputs != new.inputs:
        causes.insert(0, f"the image's own files: inputs {old.inputs[:12]} -> {new.inputs[:12]}")
    if not causes:
        causes = ["no input that the kit knows of: a step of the Dockerfile gives other bytes each time"]
    lines = "\n".join(f"  {cause}" for cause in causes)
    raise LockError(
        f"image {target.name}: built sha256:{new.sha256}, locked sha256:{old.sha256}; these files differ:\n{lines}",
        hint=f"if you meant this change, run '{target.command}' without --locked and commit the new lock",
    )
