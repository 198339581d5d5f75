"""Base of an image: a bootstrapped distribution, a reference in an engine or registry, or the locked .sqsh of another image."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kit.errors import ImageError
from kit.images.build import bootstrap_base
from kit.images.sources.engine import Engine
from kit.images.squash import sqsh_tar
from kit.schema.image import Base, Bootstrap, ImageLock

# Raise this number when the same .sqsh gives another image in the engine.
_RECIPE = 1

# An image of no files, so that a builder on `scratch` can hold a container. The digest is that of no bytes.
_SCRATCH = "kit-base/scratch:1"
_EMPTY = f"sha256:{hashlib.sha256().hexdigest()}"


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """The lock whose package versions a bootstrap takes again. required: the same inputs, so other versions are an error."""

    lock: ImageLock
    required: bool


@dataclass(frozen=True, kw_only=True)
class ReadyBase:
    """A base that the engine holds. reference: the image that `FROM` names. kind, name, digest: for the lock (see LockedBase)."""

    reference: str
    kind: Literal["bootstrap", "reference", "image"]
    name: str
    digest: str


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
) -> ReadyBase:
    """Make the base available in the engine.

    fresh: bootstrap again even if the engine holds the result of an earlier bootstrap. work: a private folder for the bootstrap's
    tar. other: lock and .sqsh of the image that `base.image` names. pinned: see Pinned. ImageError or ToolError when the base
    cannot be made, LockError when it cannot have the lock's versions and must.
    """
    if base.bootstrap is not None:
        return _bootstrapped(engine, base.bootstrap, pinned, work=work, fresh=fresh, on_line=on_line)
    if base.image is not None:
        assert other is not None
        return _locked(engine, *other)
    assert base.reference is not None
    image = engine.inspect(base.reference)
    if image is None or (platform_ and image.architecture not in ("", platform_.split("/")[1])):
        engine.pull(base.reference, platform=platform_, on_line=on_line)
        image = engine.inspect(base.reference)
    if image is None:
        raise ImageError(
            f"{base.reference}: the engine pulled the image, but then did not find it", hint="name it with its tag"
        )
    digest = image.repo_digests[0].rpartition("@")[2] if image.repo_digests else image.id
    return ReadyBase(reference=image.id, kind="reference", name=base.reference, digest=digest)


def own(engine: Engine, reference: str, *, platform_: str | None, on_line: Callable[[str], None]) -> ReadyBase:
    """The base that a Dockerfile names itself, or an empty image for `scratch`. ImageError as in `ready`."""
    if reference.lower() != "scratch":
        base = Base(reference=reference)
        return ready(engine, base, work=Path(), platform_=platform_, fresh=False, on_line=on_line)
    if engine.inspect(_SCRATCH) is None:
        engine.import_stream(iter([bytes(1024)]), _SCRATCH, changes=())
    return ReadyBase(reference=_SCRATCH, kind="reference", name="scratch", digest=_EMPTY)


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
