"""Compares two sets of files: a unified diff for each changed file, or a description if there can be no diff."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kit.schema.comparison import Change, FileDifference
from kit.snapshots.tree_listing import Listing

# difflib's time grows with the square of the number of differing lines.
MOST_BYTES = 1 << 20
_MOST_LINES = 20_000
_CONTEXT = 3

# Returns the content of a file; OSError if it cannot be read.
Read = Callable[[str], bytes]


@dataclass(frozen=True)
class ComparedFiles:
    """One side: path -> the values to compare (kind and digest, or the content itself), and a function that reads a file."""

    marks: Mapping[str, tuple[str, object]]
    read: Read


def of_tree(tree: Listing, read: Read) -> ComparedFiles:
    """The files of a snapshot. A link's content is its target."""
    targets = {one.path: one.content.encode() for one in tree.entries if one.kind == "link"}
    marks = {one.path: (one.kind, one.content) for one in tree.entries}
    return ComparedFiles(marks, lambda path: targets[path] if path in targets else read(path))


def of_contents(contents: Mapping[str, bytes]) -> ComparedFiles:
    """Files whose content is in memory."""
    return ComparedFiles({path: ("file", content) for path, content in contents.items()}, lambda path: contents[path])


def between(a: ComparedFiles, b: ComparedFiles) -> tuple[FileDifference, ...]:
    """The files that differ, sorted by path."""
    paths = sorted(path for path in {*a.marks, *b.marks} if a.marks.get(path) != b.marks.get(path))
    return tuple(_one(path, a, b) for path in paths)


def _one(path: str, a: ComparedFiles, b: ComparedFiles) -> FileDifference:
    before, after = a.marks.get(path), b.marks.get(path)
    change: Change = "added" if before is None else "removed" if after is None else "changed"
    notes = []
    if before and after and before[0] != after[0]:
        notes.append(f"{_noun(before[0])} becomes {_noun(after[0])}")
        if before[1] == after[1]:
            return FileDifference(path=path, change=change, note=notes[0])
    try:
        old, new = (one.read(path) if path in one.marks else b"" for one in (a, b))
    except OSError as error:
        return FileDifference(path=path, change=change, note=f"cannot be read any more: {error.strerror or error}")
    if b"\0" in old or b"\0" in new:
        notes.append(f"binary, {len(old)} and {len(new)} bytes")
    elif max(len(old), len(new)) > MOST_BYTES or max(old.count(b"\n"), new.count(b"\n")) > _MOST_LINES:
        notes.append(f"too large to show, {len(old)} and {len(new)} bytes")
    else:
        patch = _patch(path, old, new, there=(before is not None, after is not None))
        return FileDifference(path=path, change=change, note=", ".join(notes), patch=patch)
    return FileDifference(path=path, change=change, note=", ".join(notes))


def _noun(kind: str) -> str:
    return {"program": "a program", "link": "a link"}.get(kind, "a file")


def _patch(path: str, old: bytes, new: bytes, *, there: tuple[bool, bool]) -> str:
    lines = [one.decode(errors="backslashreplace").splitlines(keepends=True) for one in (old, new)]
    names = [f"{side}/{path}" if held else "/dev/null" for side, held in zip("ab", there, strict=True)]
    text = []
    for line in difflib.unified_diff(lines[0], lines[1], names[0], names[1], n=_CONTEXT):
        text.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(text)
