"""Base of an image: a bootstrapped distribution, a reference in an engine or registry, or the locked .sqsh of another image."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kit import shell
from kit.errors import ImageError, ToolError
from kit.files import temporary_names
from kit.images.build import host_apt_sources
from kit.images.sources.engine import Engine
from kit.images.squash import sqsh_tar
from kit.schema.image import Base, Bootstrap, ImageLock

# Raise this number when the same bootstrap table gives another tar.
_RECIPE = 1

# Remove the mirror from the image: its address may be private, and it would make the bytes depend on the machine. mmdebstrap runs
# this constant in a shell, with the new root as $1.
_FORGET_MIRROR = '--customize-hook=rm -f "$1/etc/apt/sources.list"'

# An image of no files, so that a builder on `scratch` can hold a container. The digest is that of no bytes.
_SCRATCH = "kit-base/scratch:1"
_EMPTY = f"sha256:{hashlib.sha256().hexdigest()}"

_CLEAN_ENV = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "SOURCE_DATE_EPOCH": "0"}


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
) -> ReadyBase:
    """Make the base available in the engine.

    fresh: bootstrap again even if the engine holds the result of an earlier bootstrap. work: a private folder for the bootstrap's
    tar. other: lock and .sqsh of the image that `base.image` names. ImageError or ToolError when the base cannot be made.
    """
    if base.bootstrap is not None:
        return _bootstrapped(engine, base.bootstrap, work, fresh, on_line)
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
    engine: Engine, bootstrap: Bootstrap, work: Path, fresh: bool, on_line: Callable[[str], None]
) -> ReadyBase:
    reference = f"kit-base/{bootstrap.suite}:{key(bootstrap)}"
    image = None if fresh else engine.inspect(reference)
    if image is None:
        tar = work / "base.tar"
        _make_tar(bootstrap, tar, on_line)
        engine.import_tar(tar, reference)
        tar.unlink()
        image = engine.inspect(reference)
    if image is None:
        raise ImageError(f"{reference}: the engine imported the image, but then did not find it")
    # The engine names a layer by the sha256 of its tar. The only layer here is the bootstrapped tar.
    return ReadyBase(reference=reference, kind="bootstrap", name=bootstrap.suite, digest=image.diff_ids[0])


def key(bootstrap: Bootstrap) -> str:
    """16 hex digits: a digest of the bootstrap table and of this machine's architecture."""
    meaning = {**bootstrap.model_dump(mode="json"), "recipe": _RECIPE, "machine": platform.machine()}
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:16]


def _make_tar(bootstrap: Bootstrap, tar: Path, on_line: Callable[[str], None]) -> None:
    sources = [] if bootstrap.mirror else host_apt_sources.lines(bootstrap.suite, bootstrap.components)
    if shell.which("mmdebstrap"):
        _mmdebstrap(bootstrap, sources, tar, on_line)
    elif shell.which("debootstrap"):
        _debootstrap(bootstrap, sources, tar, on_line)
    else:
        raise ToolError("neither mmdebstrap nor debootstrap is on this machine", hint="apt-get install mmdebstrap")


def _mmdebstrap(bootstrap: Bootstrap, sources: list[str], tar: Path, on_line: Callable[[str], None]) -> None:
    argv = ["mmdebstrap", "--variant=minbase", "--format=tar", f"--components={','.join(bootstrap.components)}"]
    argv += [f"--include={','.join(bootstrap.packages)}"] if bootstrap.packages else []
    argv += [_FORGET_MIRROR, bootstrap.suite, str(tar)]
    if bootstrap.mirror:
        argv.append(bootstrap.mirror)
    elif sources:
        file = tar.with_name("sources.list")
        file.write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
        argv.append(str(file))
    with _temporary() as place:
        _run(argv, on_line, {"TMPDIR": str(place)} if place else {})


@contextlib.contextmanager
def _temporary() -> Iterator[Path | None]:
    """A temporary folder for mmdebstrap run by root. A killed mmdebstrap leaves files there, and the next run removes them.

    For other users there is no such folder. apt's own user must be able to enter the folder, as it can enter /tmp. Otherwise apt
    works as root, and the tar holds other owners.
    """
    if os.geteuid() != 0:
        yield None
        return
    with temporary_names.beside(Path(tempfile.gettempdir()) / "kit-bootstrap") as place:
        place.mkdir()
        place.chmod(0o711)
        yield place


def _debootstrap(bootstrap: Bootstrap, sources: list[str], tar: Path, on_line: Callable[[str], None]) -> None:
    if os.geteuid() != 0:
        raise ToolError("debootstrap needs root", hint="apt-get install mmdebstrap, which does not")
    root = tar.with_name("root")
    argv = ["debootstrap", "--variant=minbase", f"--components={','.join(bootstrap.components)}"]
    argv += [f"--include={','.join(bootstrap.packages)}"] if bootstrap.packages else []
    # debootstrap takes one mirror and only the release itself, so choose the first source that is not a list of updates.
    own = next((line.split("]")[-1].split() for line in sources if bootstrap.suite in line.split()), [])
    mirror = bootstrap.mirror or next((word for word in own if "://" in word), None)
    _run([*argv, bootstrap.suite, str(root), *([mirror] if mirror else [])], on_line)
    for leftover in (root / "etc/apt/sources.list", *(root / "var/cache/apt/archives").glob("*.deb")):
        leftover.unlink(missing_ok=True)
    _run(["tar", "--sort=name", "--numeric-owner", "--mtime=@0", "-C", str(root), "-cf", str(tar), "."], on_line)


def _run(argv: list[str], on_line: Callable[[str], None], more: Mapping[str, str] | None = None) -> None:
    try:
        for line in shell.lines(shell.bound(argv), env={**os.environ, **_CLEAN_ENV, **(more or {})}):
            on_line(line)
    except ToolError as error:
        hint = "check that this machine's apt works ('apt-get update'), or set [base.bootstrap] mirror in image.toml"
        raise ImageError(f"the base could not be bootstrapped: {error.message}", hint=hint) from None
