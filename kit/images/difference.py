"""Compares two images: packages, files, environment, configuration. The .sqsh files are read as streams."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kit import shell
from kit.errors import ImageError, LockError
from kit.images import image_lock, store
from kit.images.sources import read_pseudo_file
from kit.images.squash import installed_packages, sqshfile
from kit.schema.image import ImageConfig

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Sorted lines, each about one thing. `+`: only in the second image; `-`: only in the first; `~`: different in the two."""

    packages: tuple[str, ...]
    files: tuple[str, ...]
    environment: tuple[str, ...]
    configuration: tuple[str, ...]

    @property
    def any(self) -> bool:
        """Whether any difference was found."""
        return any((self.packages, self.files, self.environment, self.configuration))


def between(first: Path, second: Path) -> Difference:
    """The differences of two .sqsh files. ImageError when one cannot be read."""
    before, after = installed_packages.packages(first), installed_packages.packages(second)
    config, other = sqshfile.config(first), sqshfile.config(second)
    kinds = (("apt", before.apt, after.apt), ("pip", before.pip, after.pip))
    return Difference(
        packages=tuple(line for kind, a, b in kinds for line in lines(a, b, prefix=f"{kind}:")),
        files=files(first, second),
        environment=lines(config.env, other.env),
        configuration=lines(_rest(config), _rest(other)),
    )


def files(first: Path, second: Path) -> tuple[str, ...]:
    """The paths that differ in type, mode, time, target or content."""
    return lines(_facts(first), _facts(second), values=False)


def find(name: str, *, project: Path, store_dir: Path) -> Path:
    """The .sqsh of an image, given its name, the first digits of its digest, or its path. LockError when no image matches."""
    if name.endswith(".sqsh") or "/" in name:
        sqshfile.check(Path(name))
        return Path(name)
    place = image_lock.find(name, project=project)
    if place is not None:
        found = store.path(store_dir, image_lock.read_lock(place).sha256)
        if not found.is_file():
            raise LockError(f"image {name}: {found} is not there", hint=f"run 'kit build-image {name}'")
        return found
    digits = name.removeprefix("sha256:")
    held = sorted((store_dir / "sha256").glob(f"{digits}*.sqsh")) if re.fullmatch(r"[0-9a-f]{6,64}", digits) else []
    if len(held) != 1:
        raise LockError(
            f"{name}: {'several images start with this digest' if held else 'no such image'}",
            hint="kit images lists them",
        )
    return held[0]


def lines(a: Mapping[str, str], b: Mapping[str, str], *, prefix: str = "", values: bool = True) -> tuple[str, ...]:
    """The sorted names whose values differ, as lines of `Difference`. values: whether the lines show the values."""
    changes = []
    for key in sorted({*a, *b}):
        if key not in b:
            changes.append(f"- {prefix}{key}" + (f" {a[key]}" if values else ""))
        elif key not in a:
            changes.append(f"+ {prefix}{key}" + (f" {b[key]}" if values else ""))
        elif a[key] != b[key]:
            changes.append(f"~ {prefix}{key}" + (f" {a[key]} -> {b[key]}" if values else ""))
    return tuple(changes)


def _rest(config: ImageConfig) -> dict[str, str]:
    return {"workdir": config.workdir}


def _facts(image: Path) -> dict[str, str]:
    """Path -> everything that must be equal. For a file that includes the sha256 of its content, not its offset in the stream."""
    unsquashfs = shell.require("unsquashfs", hint="apt-get install squashfs-tools")
    with shell.output([unsquashfs, "-quiet", "-no-progress", "-pf", "/dev/stdout", str(image)]) as stream:
        facts: dict[str, str] = {}
        contents: list[read_pseudo_file.Definition] = []
        for definition in read_pseudo_file.definitions(stream):
            if definition.kind == "R":
                contents.append(definition)
            else:
                facts[definition.name] = (
                    f"{definition.kind} {definition.time} {definition.mode:o} {definition.target} {definition.device}"
                )
        for definition in contents:
            facts[definition.name] = (
                f"R {definition.time} {definition.mode:o} {_digest(stream, definition.size, image)}"
            )
    return facts


def _digest(stream: IO[bytes], length: int, image: Path) -> str:
    digest = hashlib.sha256()
    while length:
        chunk = stream.read(min(length, _CHUNK))
        if not chunk:
            raise ImageError(f"{image}: cannot be read to its end", hint="kit verify-image --full")
        digest.update(chunk)
        length -= len(chunk)
    return digest.hexdigest()
