"""A base made from a distribution's packages, in the versions of the image's lock where a mirror still has them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shlex
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kit import shell
from kit.errors import ImageError, LostBaseError, ToolError
from kit.files import temporary_names
from kit.images.build import host_apt_sources
from kit.images.squash import installed_packages
from kit.schema.image import Bootstrap, ImageLock

# Raise this number when the same bootstrap table gives another tar.
_RECIPE = 1

# Remove the mirror from the image: its address may be private, and it would make the bytes depend on the machine. mmdebstrap runs
# this constant in a shell, with the new root as $1. The same for the versions that apt had to take.
_FORGET_MIRROR = '--customize-hook=rm -f "$1/etc/apt/sources.list"'
_VERSIONS = "etc/apt/preferences.d/kit-lock"
_FORGET_VERSIONS = f'--customize-hook=rm -f "$1/{_VERSIONS}"'
# apt_preferences(5): from 1000 on, apt takes the version even if a newer one is there.
_PRIORITY = 1001

_STATUS = "var/lib/dpkg/status"
_NAMED = 5

_CLEAN_ENV = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "SOURCE_DATE_EPOCH": "0"}


def key(bootstrap: Bootstrap, *, pinned: str = "") -> str:
    """16 hex digits: a digest of the bootstrap table, of this machine's architecture, and of the base that a lock names."""
    meaning = {**bootstrap.model_dump(mode="json"), "recipe": _RECIPE, "machine": platform.machine()}
    meaning |= {"pinned": pinned} if pinned else {}
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:16]


def make_tar(bootstrap: Bootstrap, tar: Path, on_line: Callable[[str], None], *, versions: Mapping[str, str]) -> None:
    """Write the base as a tar. versions: package -> version that apt takes where a mirror still has it; debootstrap ignores them.

    ImageError or ToolError when the base cannot be made.
    """
    sources = [] if bootstrap.mirror else host_apt_sources.lines(bootstrap.suite, bootstrap.components)
    if shell.which("mmdebstrap"):
        _mmdebstrap(bootstrap, sources, tar, on_line, versions)
    elif shell.which("debootstrap"):
        _debootstrap(bootstrap, sources, tar, on_line)
    else:
        raise ToolError("neither mmdebstrap nor debootstrap is on this machine", hint="apt-get install mmdebstrap")


def require_versions(tar: Path, locked: ImageLock) -> None:
    """LostBaseError if a package of the base has another version than in the lock: the image would get other bytes."""
    with tarfile.open(tar) as members:
        file = next((members.extractfile(member) for member in members if member.name.endswith(_STATUS)), None)
        status = file.read().decode() if file else ""
    versions = locked.packages.apt
    moved = [
        f"{name} {versions[name]} (it has {version})"
        for name, version in installed_packages.read_dpkg_status(status).items()
        if versions.get(name, version) != version
    ]
    if moved:
        more = f" and {len(moved) - _NAMED} more" if len(moved) > _NAMED else ""
        raise LostBaseError(
            locked.name,
            f"the mirror no longer has these packages of the lock: {', '.join(moved[:_NAMED])}{more}",
            hint=f"'kit build-image {locked.name} --relock' takes the versions of today and writes them to the lock; or let "
            "[base.bootstrap] mirror name an archive that keeps old versions",
        )


def _mmdebstrap(
    bootstrap: Bootstrap,
    sources: list[str],
    tar: Path,
    on_line: Callable[[str], None],
    versions: Mapping[str, str],
) -> None:
    argv = ["mmdebstrap", "--variant=minbase", "--format=tar", f"--components={','.join(bootstrap.components)}"]
    argv += [f"--include={','.join(bootstrap.packages)}"] if bootstrap.packages else []
    if versions:
        file = tar.with_name("preferences")
        file.write_text(preferences(versions), encoding="utf-8")
        argv += [f"--setup-hook=upload {shlex.quote(str(file))} /{_VERSIONS}", _FORGET_VERSIONS]
    argv += [_FORGET_MIRROR, bootstrap.suite, str(tar)]
    if bootstrap.mirror:
        argv.append(bootstrap.mirror)
    elif sources:
        file = tar.with_name("sources.list")
        file.write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
        argv.append(str(file))
    with _temporary() as place:
        _run(argv, on_line, {"TMPDIR": str(place)} if place else {})


def preferences(versions: Mapping[str, str]) -> str:
    """apt_preferences(5) that take these versions. A version that no mirror has changes nothing."""
    return "".join(
        f"Package: {name}\nPin: version {version}\nPin-Priority: {_PRIORITY}\n\n" for name, version in versions.items()
    )


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
