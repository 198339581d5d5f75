"""Base of an image: a bootstrapped distribution, a reference in an engine or registry, or the locked .sqsh of another image."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kit.errors import ImageError, LostBaseError, UsageError
from kit.images.build import bootstrap_base
from kit.images.sources import image_reference
from kit.images.sources.engine import Engine, EngineImage
from kit.images.sources.engine_hints import is_missing, is_unreachable
from kit.images.squash import sqsh_tar
from kit.schema.image import Base, Bootstrap, ImageLock

# Raise this number when the same .sqsh gives another image in the engine.
_RECIPE = 1

# An image of no files, so that a builder on `scratch` can hold a container. The digest is that of no bytes.
_SCRATCH = "kit-base/scratch:1"
_EMPTY = f"sha256:{hashlib.sha256().hexdigest()}"


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """The lock whose base a build takes again: the versions of its packages, or the digest that a tag named.

    required: the inputs are the same, so another base is an error.
    """

    lock: ImageLock
    required: bool


@dataclass(frozen=True, kw_only=True)
class ReadyBase:
    """A base that the engine holds. reference: the image that `FROM` names. kind, name, digest: for the lock (see LockedBase).

    exact: the image with its digest, if its tag names another image in the engine, or none.
    """

    reference: str
    kind: Literal["bootstrap", "reference", "image"]
    name: str
    digest: str
    exact: str = ""


def ready(
    engine: Engine,
    base: Base,
    *,
    work: Path,
    platform_: str | None,
    fresh: bool,
    on_line: Callable[[str], None],
    other: tuple[ImageLock, Path] | None = None,
    pinned: Pinned | None = None,
    today: bool = False,
) -> ReadyBase:
    """Make the base available in the engine.

    fresh: bootstrap again even if the engine holds the result of an earlier bootstrap. today: ask the registry what a tag names
    now, also if the engine holds an image of that tag. work: a private folder for the bootstrap's tar. other: lock and .sqsh of
    the image that `base.image` names. pinned: see Pinned. ImageError or ToolError when the base cannot be made, LostBaseError when
    it cannot be that of the lock and must.
    """
    if base.bootstrap is not None:
        return _bootstrapped(engine, base.bootstrap, pinned, work=work, fresh=fresh, on_line=on_line)
    if base.image is not None:
        assert other is not None
        return _locked(engine, *other)
    assert base.reference is not None
    return _referenced(engine, base.reference, pinned, platform_=platform_, today=today, on_line=on_line)


def own(
    engine: Engine,
    reference: str,
    *,
    platform_: str | None,
    on_line: Callable[[str], None],
    pinned: Pinned | None = None,
    today: bool = False,
) -> ReadyBase:
    """The base that a Dockerfile names itself, or an empty image for `scratch`. today and errors as in `ready`."""
    if reference.lower() != "scratch":
        return _referenced(engine, reference, pinned, platform_=platform_, today=today, on_line=on_line)
    if engine.inspect(_SCRATCH) is None:
        engine.import_stream(iter([bytes(1024)]), _SCRATCH, changes=())
    return ReadyBase(reference=_SCRATCH, kind="reference", name="scratch", digest=_EMPTY)


def _referenced(
    engine: Engine,
    reference: str,
    pinned: Pinned | None,
    *,
    platform_: str | None,
    today: bool,
    on_line: Callable[[str], None],
) -> ReadyBase:
    """The image that a reference names; with `pinned`, the one that it named for the lock, even if its tag has moved since."""
    image = _held(engine, reference, platform_)
    # No registry has another one of an image that was built here or loaded. The bytes of the result tell whether it is the lock's.
    is_local = image is not None and not _is_from_registry(image, reference)
    wanted = pinned.lock.base.digest if pinned and "@" not in reference else ""
    if pinned and wanted and (image is None or wanted not in _digests(image)):
        if is_local:
            on_line(f"{reference}: the engine's image is of no registry; taking it although the lock has {wanted}")
        elif found := _of_lock(engine, reference, pinned, platform_=platform_, on_line=on_line):
            return found
        else:
            today = True
    if image is None:
        image = _pulled(engine, reference, platform_, on_line)
    elif today and not is_local and "@" not in reference:
        image = _of_today(engine, reference, image, platform_, on_line)
    return _as_base(image, reference, digest=wanted if wanted in _digests(image) else "")


def _of_lock(
    engine: Engine, reference: str, pinned: Pinned, *, platform_: str | None, on_line: Callable[[str], None]
) -> ReadyBase | None:
    """The image of the lock's digest; None if engine and registry have lost it and another one may be taken."""
    wanted = pinned.lock.base.digest
    folder, _, name = reference.rpartition("/")
    exact = f"{folder}{'/' if folder else ''}{name.partition(':')[0]}@{wanted}"
    try:
        image = _held(engine, exact, platform_) or _pulled(engine, exact, platform_, on_line)
        return _as_base(image, reference, digest=wanted, exact=exact)
    except ImageError as error:
        if not is_missing(error.message):
            raise
    problem = f"neither the engine nor its registry has the image any more that {reference} was: {wanted}"
    if pinned.required:
        hint = f"'kit build-image {pinned.lock.name} --relock' takes the image of today and writes it to the lock"
        raise LostBaseError(pinned.lock.name, problem, hint=hint)
    on_line(f"{problem}; taking the image of today")
    return None


def _of_today(
    engine: Engine, reference: str, held: EngineImage, platform_: str | None, on_line: Callable[[str], None]
) -> EngineImage:
    """What the tag names in its registry now; the held image where no registry answers."""
    try:
        return _pulled(engine, reference, platform_, on_line)
    except ImageError as error:
        if not is_unreachable(error.message):
            raise
        on_line(f"{error.message}; taking the image that the engine holds, which may be an older one")
        return held


def _as_base(image: EngineImage, reference: str, *, digest: str = "", exact: str = "") -> ReadyBase:
    digest = digest or (image.repo_digests[0].rpartition("@")[2] if image.repo_digests else image.id)
    return ReadyBase(reference=image.id, kind="reference", name=reference, digest=digest, exact=exact)


def _pulled(engine: Engine, reference: str, platform_: str | None, on_line: Callable[[str], None]) -> EngineImage:
    engine.pull(reference, platform=platform_, on_line=on_line)
    image = engine.inspect(reference)
    if image is None:
        raise ImageError(
            f"{reference}: the engine pulled the image, but then did not find it", hint="name it with its tag"
        )
    return image


def _held(engine: Engine, reference: str, platform_: str | None) -> EngineImage | None:
    image = engine.inspect(reference)
    return None if image and platform_ and image.architecture not in ("", platform_.split("/")[1]) else image


def _is_from_registry(image: EngineImage, reference: str) -> bool:
    """Whether a registry gave or got the image under this name. A digest may be of another name that the image has, too."""
    return _repository(reference) in {_repository(name) for name in image.repo_digests}


def _repository(reference: str) -> str:
    try:
        return image_reference.parse(reference.partition("@")[0]).repository
    except UsageError:  # an engine's `<none>@sha256:…`
        return ""


def _digests(image: EngineImage) -> set[str]:
    """The names of its bytes: the engine's own, and one for each form in which a registry gave it."""
    return {image.id, *(name.rpartition("@")[2] for name in image.repo_digests)}


def _locked(engine: Engine, locked: ImageLock, sqsh: Path) -> ReadyBase:
    """Import the tree of a .sqsh into the engine, tagged by the digest of the .sqsh. The engine imports each digest once."""
    changes = sqsh_tar.changes(locked.config)
    meaning = json.dumps([_RECIPE, locked.sha256, changes])
    reference = f"kit-base/image-{locked.name}:{hashlib.sha256(meaning.encode()).hexdigest()[:32]}"
    if engine.inspect(reference) is None:
        with sqsh_tar.stream(sqsh) as chunks:
            engine.import_stream(chunks, reference, changes=changes)
    if engine.inspect(reference) is None:
        raise ImageError(f"{reference}: the engine imported the image, but then did not find it")
    return ReadyBase(reference=reference, kind="image", name=locked.name, digest=locked.digest)


def _bootstrapped(
    engine: Engine,
    bootstrap: Bootstrap,
    pinned: Pinned | None,
    *,
    work: Path,
    fresh: bool,
    on_line: Callable[[str], None],
) -> ReadyBase:
    """A base of the lock's digest if the engine has one; else a new one with the lock's versions, else with those of today."""
    wanted = pinned.lock.base.digest if pinned else ""
    reference = f"kit-base/{bootstrap.suite}:{bootstrap_base.key(bootstrap)}"
    image = None if fresh else engine.inspect(reference)
    if pinned and (image is None or image.diff_ids[0] != wanted):
        reference = f"kit-base/{bootstrap.suite}:{bootstrap_base.key(bootstrap, pinned=wanted)}"
        image = None if fresh else engine.inspect(reference)
    if image is None:
        tar = work / "base.tar"
        bootstrap_base.make_tar(bootstrap, tar, on_line, versions=pinned.lock.packages.apt if pinned else {})
        if pinned and pinned.required:
            bootstrap_base.require_versions(tar, pinned.lock)
        engine.import_tar(tar, reference)
        tar.unlink()
        image = engine.inspect(reference)
    if image is None:
        raise ImageError(f"{reference}: the engine imported the image, but then did not find it")
    # The engine names a layer by the sha256 of its tar. The only layer here is the bootstrapped tar.
    return ReadyBase(reference=reference, kind="bootstrap", name=bootstrap.suite, digest=image.diff_ids[0])
