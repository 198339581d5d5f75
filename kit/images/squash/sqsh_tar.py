"""A .sqsh as a tar stream, so that an engine can build an image on it: no mount, no root, nothing unpacked."""

from __future__ import annotations

import contextlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kit import shell
from kit.errors import ImageError
from kit.images.sources import read_pseudo_file
from kit.images.sources.tree_stream import encoded
from kit.images.squash import sqshfile
from kit.schema.image import ImageConfig

_TYPES = {
    "D": tarfile.DIRTYPE,
    "S": tarfile.SYMTYPE,
    "C": tarfile.CHRTYPE,
    "B": tarfile.BLKTYPE,
    "I": tarfile.FIFOTYPE,
    "R": tarfile.REGTYPE,
}


@contextlib.contextmanager
def stream(image: Path) -> Iterator[Iterator[bytes]]:
    """The tar of an image's tree. ImageError if it cannot be read, or if it has attributes that would be lost."""
    if sqshfile.has_xattrs(image):
        raise ImageError(
            f"{image}: it has file capabilities, which an image built on it would lose",
            hint="build on the image in a registry or an engine: [base] reference = 'NAME:TAG'",
        )
    unsquashfs = shell.require("unsquashfs", hint="apt-get install squashfs-tools")
    with shell.output([unsquashfs, "-quiet", "-no-progress", "-pf", "/dev/stdout", str(image)]) as out:
        yield _tar(out)


def changes(config: ImageConfig) -> list[str]:
    """The configuration as Dockerfile instructions. A value with a newline cannot be written there and is left out."""
    instructions = [f"ENV {name}={_quoted(value)}" for name, value in config.env.items() if "\n" not in value]
    instructions += [
        f"LABEL {_quoted(name)}={_quoted(value)}" for name, value in config.labels.items() if "\n" not in value
    ]
    instructions += [f"WORKDIR {config.workdir}"] if config.workdir != "/" else []
    instructions += [f"VOLUME {json.dumps(list(config.volumes))}"] if config.volumes else []
    instructions += [f"ENTRYPOINT {json.dumps(list(config.entrypoint))}"] if config.entrypoint else []
    instructions += [f"CMD {json.dumps(list(config.cmd))}"] if config.cmd else []
    return instructions


def _quoted(value: str) -> str:
    for sign in ("\\", '"', "$"):
        value = value.replace(sign, f"\\{sign}")
    return f'"{value}"'


def _tar(out: IO[bytes]) -> Iterator[bytes]:
    files: list[tarfile.TarInfo] = []
    links: list[tarfile.TarInfo] = []
    named: dict[str, tarfile.TarInfo] = {}
    for definition in read_pseudo_file.definitions(out):
        if definition.name == "/":
            continue
        member = _member(definition)
        named[definition.name] = member
        if definition.kind == "R":
            files.append(member)
        elif definition.kind == "L":
            links.append(member)
        else:
            yield from encoded(member, None)
    for member in files:
        yield from encoded(member, out)
    for member in links:
        # An unpacker sets mode and time of the file from the link's header.
        member.mode, member.mtime = named[member.linkname].mode, named[member.linkname].mtime
        yield from encoded(member, None)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _member(definition: read_pseudo_file.Definition) -> tarfile.TarInfo:
    member = tarfile.TarInfo(definition.name)
    if definition.kind == "L":
        member.type, member.linkname = tarfile.LNKTYPE, definition.target
        return member
    member.type, member.mode, member.mtime = _TYPES[definition.kind], definition.mode, definition.time
    member.size, member.linkname = definition.size, definition.target
    member.devmajor, member.devminor = definition.device
    return member
