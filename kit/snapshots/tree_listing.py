"""A tree as text: one line per file, link or mode. The sha256 of the text is the tree's hash, and so identifies all its content.

`sha256sum --check` can read the same text: checksum lines have its format, and modes and links are comments to it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

from kit.errors import RunError

_HEAD = "# kit workspace, form 1"
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_LINE = re.compile(r"(?P<escaped>\\?)(?P<digest>[0-9a-f]{64})  (?P<path>.+)", re.DOTALL)

Kind = Literal["file", "program", "link"]


class ListedFile(NamedTuple):
    """One file of a tree. path: relative, with '/'. content: a link's target, else the sha256 of the file's content.

    A program is a file with its x bit set.
    """

    path: str
    kind: Kind
    content: str


@dataclass(frozen=True)
class Listing:
    """All files of a workspace, sorted by path."""

    entries: tuple[ListedFile, ...]

    @cached_property
    def text(self) -> bytes:
        """The listing as bytes. File names that are not UTF-8 keep their bytes."""
        lines = [_HEAD]
        for path, kind, content in self.entries:
            if kind == "link":
                lines.append(f"# link {json.dumps([path, content])}")
                continue
            if kind == "program":
                lines.append(f"# program {json.dumps(path)}")
            lines.append(_checksum(path, content))
        return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")

    @cached_property
    def hash(self) -> str:
        """The tree's hash: 64 hexadecimal digits."""
        return hashlib.sha256(self.text).hexdigest()

    @cached_property
    def by_path(self) -> dict[str, ListedFile]:
        """Path -> entry."""
        return {entry.path: entry for entry in self.entries}

    @cached_property
    def folders(self) -> frozenset[str]:
        """Every folder that holds a file, at any depth."""
        return frozenset(str(folder) for entry in self.entries for folder in PurePosixPath(entry.path).parents)


def make_listing(entries: Iterable[ListedFile]) -> Listing:
    """The tree of these entries, in any order."""
    return Listing(tuple(sorted(entries)))


def parse(text: bytes, *, name: str) -> Listing:
    """The inverse of `Listing.text`. RunError, with `name`, for any other text."""
    lines = text.decode(errors="surrogateescape").split("\n")
    entries, programs = [], set[str]()
    try:
        if lines[0] != _HEAD or lines[-1] != "":
            raise ValueError
        for line in lines[1:-1]:
            word, _, rest = line.removeprefix("# ").partition(" ") if line.startswith("# ") else ("", "", "")
            if word == "link":
                path, target = json.loads(rest)
                entries.append(ListedFile(_safe(path), "link", str(target)))
            elif word == "program":
                programs.add(json.loads(rest))
            else:
                entries.append(_of_checksum(line, programs))
    except (ValueError, TypeError, RecursionError):
        raise RunError(f"{name}: not the listing of a workspace, or damaged") from None
    tree = make_listing(entries)
    if tree.text != text or len(tree.by_path) != len(entries) or tree.folders & tree.by_path.keys():
        raise RunError(f"{name}: not the listing of a workspace, or damaged")
    return tree


def _of_checksum(line: str, programs: set[str]) -> ListedFile:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(line)
    path = match["path"]
    if match["escaped"]:
        path = re.sub(r"\\(.)", lambda m: {"\\": "\\", "n": "\n", "r": "\r"}[m[1]], path)
    return ListedFile(_safe(path), "program" if path in programs else "file", match["digest"])


def _safe(path: object) -> str:
    """Return a path that stays in the tree's folder; ValueError for any other."""
    if not isinstance(path, str) or "\0" in path or any(part in {"", ".", ".."} for part in path.split("/")):
        raise ValueError(path)
    return path


def _checksum(path: str, digest: str) -> str:
    """A line of sha256sum(1). A name with a line break or a backslash is escaped, and its line begins with a backslash."""
    escaped = re.sub(r"[\\\n\r]", lambda found: _ESCAPES[found[0]], path)
    mark = "\\" if escaped != path else ""
    return f"{mark}{digest}  {escaped}"
