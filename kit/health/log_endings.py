"""Finds the end of a program's log: the exception and its place in the user's code, or the last lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from kit.health.run_record import START, Log, shown

# torch prefixes each line of a traceback with the rank, torchrun with the role's name.
_PREFIX = re.compile(r"^(?:\[(?:rank|default|[a-z_]+)\d+\]:\s?)+")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
# faulthandler's traceback: the innermost frame comes first.
_FATAL = re.compile(r"^Fatal Python error: (?P<what>.+)$")
# What libstdc++ and assert(3) print before: the reason of the abort.
_NATIVE = re.compile(r"^terminate called |^ +what\(\): |^[^\n]*Assertion .* failed")
_FATAL_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')
_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_LIBRARY_PATHS = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ", "<string>")
_IGNORED = "Exception ignored in"
# A message ends at one of the log's own lines, a C++ stack or an empty line.
_STOP = re.compile(
    r"^$|^\[?\d{4}-\d\d-\d\d[T ]|^Exception raised from|^(?:During handling|The above exception)|^srun: |^slurmstepd"
)
_MOST_LINES = 30
# An exception counts as the program's end if at most this many lines follow it, such as messages of Python and torch at exit.
_MOST_LINES_AFTER = 60
_LAST = 40
# Last lines that do not explain the end.
_NOISE = re.compile(r"^\s*$|^Terminated$|^Killed$|^\[W\d|^\*+$|^-+$|^=+$|\(core dumped\)$")


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of a log. type: the exception's, without its module; empty if there is no exception.

    text: the exception with its message, else the last lines. place: `file.py:12 in function`. line: its number in the file.
    quoted: that line.
    """

    type: str
    message: str
    text: str
    place: str
    line: int
    quoted: str

    @property
    def says(self) -> str:
        """The exception on one line."""
        first = shown(self.message.split("\n")[0])
        return f"{self.type}: {first}" if first else self.type


def ending(log: Log, roots: Sequence[tuple[str, str]]) -> Ending:
    """The end of a rank's log. roots: pairs of a folder and its replacement in the shown file names."""
    lines = [_PREFIX.sub("", line) for line in log.lines]
    found = _exception(log, lines, roots) or _fatal(log, lines, roots)
    if found is not None:
        return found
    indices = [place for place, line in enumerate(lines) if not _NOISE.search(line) and not START.search(line)]
    last = indices[-1] if indices else 0
    return Ending(
        type="",
        message="",
        text="\n".join(lines[place] for place in indices[-_LAST:]),
        place="",
        line=log.number(last),
        quoted=shown(lines[last]) if indices else "",
    )


def _exception(log: Log, lines: list[str], roots: Sequence[tuple[str, str]]) -> Ending | None:
    frames = [place for place, line in enumerate(lines) if _FRAME.match(line)]
    while frames:
        last = frames.pop()
        at = next((n for n in range(last + 1, len(lines)) if lines[n][:1] not in {" ", "\t"}), None)
        if at is None or len(lines) - at > _MOST_LINES_AFTER:
            return None
        raised = _RAISED.match(lines[at])
        if raised and not _is_ignored(lines, last):
            end = next((n for n in range(at + 1, len(lines)) if _STOP.search(lines[n])), len(lines))
            text = "\n".join(lines[at : min(end, at + _MOST_LINES)])
            block = [match for line in lines[_header(lines, last) : at] if (match := _FRAME.match(line))]
            return Ending(
                type=raised["type"].rpartition(".")[2],
                message=text.partition(": ")[2],
                text=text,
                place=_place(block[::-1], roots),
                line=log.number(at),
                quoted=shown(lines[at]),
            )
    return None


def _fatal(log: Log, lines: list[str], roots: Sequence[tuple[str, str]]) -> Ending | None:
    for at in range(len(lines) - 1, -1, -1):
        if fatal := _FATAL.match(lines[at]):
            block = [match for line in lines[at:] if (match := _FATAL_FRAME.match(line))]
            begin = at
            while begin > 0 and _NATIVE.match(lines[begin - 1]):
                begin -= 1
            return Ending(
                type="",
                message="",
                # With the innermost frame: for a crash in a library, that is all that tells it from others.
                text="\n".join([*lines[begin:at], fatal[0], *(frame[0] for frame in block[:1])]),
                place=_place(block, roots),
                line=log.number(max(begin, at - 1)),
                quoted=shown(lines[max(begin, at - 1)]),
            )
    return None


def _header(lines: list[str], last: int) -> int:
    """The line where the traceback of a frame begins."""
    place = last
    while place > 0 and not lines[place].startswith("Traceback") and "Traceback (most recent" not in lines[place]:
        place -= 1
    return place


def _is_ignored(lines: list[str], last: int) -> bool:
    """Whether Python only reported the exception: an exception in a destructor does not end the program."""
    header = _header(lines, last)
    return header > 0 and lines[header - 1].startswith(_IGNORED)


def _place(frames: Sequence[re.Match[str]], roots: Sequence[tuple[str, str]]) -> str:
    """The innermost frame of the user's own code, else the innermost of all. frames: the innermost first."""
    own = [frame for frame in frames if not any(part in frame["file"] for part in _LIBRARY_PATHS)]
    chosen = next(iter(own or frames), None)
    if chosen is None:
        return ""
    name = _relative(chosen["file"], roots)
    function = chosen["function"]
    return f"{name}:{chosen['line']}" + (f" in {function}" if function and function != "<module>" else "")


def _relative(file: str, roots: Sequence[tuple[str, str]]) -> str:
    for root, prefix in roots:
        if root and PurePosixPath(file).is_relative_to(root):
            return f"{prefix}{PurePosixPath(file).relative_to(root)}"
    return file
