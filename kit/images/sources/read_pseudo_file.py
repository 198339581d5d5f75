"""Parses a .sqsh's pseudo file (mksquashfs(1), "Pseudo file definitions") as unsquashfs prints it: definitions, then all data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from kit.errors import ImageError
from kit.images.sources.tree_stream import ERRORS

_LINE = re.compile(rb"((?:[^\\ ]|\\.)*) (.) ?(.*)", re.DOTALL)
_DATA = b"# START OF DATA - DO NOT MODIFY\n"


@dataclass(frozen=True, kw_only=True)
class Definition:
    """One entry of the image. kind: D folder, R file, S symbolic link, L hard link, C and B devices, I pipe or socket.

    size: of a file; the data of all files follow in the order of the definitions. target: of a link.
    """

    name: str
    kind: str
    time: int = 0
    mode: int = 0
    size: int = 0
    target: str = ""
    device: tuple[int, int] = (0, 0)


def definitions(stream: IO[bytes]) -> Iterator[Definition]:
    """The definitions, up to the start of the data. ImageError for a line that is not a definition."""
    for line in stream:
        if line == _DATA:
            stream.readline()
            return
        if line.startswith(b"#"):
            continue
        found = _LINE.fullmatch(line.rstrip(b"\n"))
        try:
            if found is None:
                raise ValueError
            yield _definition(*(part.decode(errors=ERRORS) for part in found.groups()))
        except (ValueError, IndexError):
            raise ImageError(f"unsquashfs printed {line!r}, which this kit does not understand") from None


def _definition(raw: str, kind: str, rest: str) -> Definition:
    name = re.sub(r"\\(.)", r"\1", raw)
    if kind == "L":
        return Definition(name=name, kind=kind, target=re.sub(r"\\(.)", r"\1", rest))
    time, mode, _owner, _group, *more = rest.split(" ", 4)
    more = more[0].split(" ") if more and kind != "S" else more
    size = int(more[0]) if kind == "R" else 0
    device = (int(more[0]), int(more[1])) if kind in "CB" else (0, 0)
    target = more[0] if kind == "S" else ""
    return Definition(name=name, kind=kind, time=int(time), mode=int(mode, 8), size=size, target=target, device=device)
