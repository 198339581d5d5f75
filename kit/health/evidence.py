"""Evidence of a stall: what bin/evidence.sh has gathered of each rank, read for the rules of stalls.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from kit import files

_MOST_BYTES = 128 << 10
_MOST_RANKS = 1024
_SECTION = re.compile(r"^== (?P<name>[a-z ]+)$")
# faulthandler's line, and py-spy's.
_FRAMES = (
    re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$'),
    re.compile(r"^    (?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)$"),
)
_PROCESS = re.compile(r"^Process (?P<pid>\d+)")
# The thread that a signal reaches is the main one; py-spy names it.
_MAIN = re.compile(r'^(?:Current thread |Thread .*"MainThread")')
_OTHER = re.compile(r"^Thread ")
_COLLECTIVES = re.compile(
    r"^(?:all_?reduce|all_?gather\w*|reduce\w*|broadcast\w*|(?:monitored_)?barrier|all_?to_?all\w*|gather\w*|scatter\w*|i?send|i?recv|wait)$"
)
# Files of every Python program and of the kit, which say nothing about what a rank does.
_DULL = re.compile(
    r"\.(?:so[.\d]*|py|pyc|log|whl)$|/site-packages/|/logs/|^/(?:proc|sys|usr|run)/|/(?:state|monitor)/| \(deleted\)$|^/memfd:"
)


@dataclass(frozen=True)
class Frame:
    """A Python frame. at: its line in the evidence's file."""

    function: str
    file: str
    line: int
    at: int

    @property
    def place(self) -> str:
        """Function, file and line, as an answer has them."""
        return f"{self.function} ({PurePosixPath(self.file).name}:{self.line})"

    @property
    def collective(self) -> bool:
        """Whether it waits for other ranks in torch.distributed."""
        return "torch/distributed/" in self.file and _COLLECTIVES.match(self.function) is not None


@dataclass(frozen=True)
class Process:
    """A process of a rank. state: proc(5)'s letter. cpu: percent of one CPU over a second. at: its line in the evidence's file."""

    pid: int
    state: str
    cpu: int
    wchan: str
    command: str
    at: int


@dataclass(frozen=True, kw_only=True)
class RankEvidence:
    """What one rank did. file: of the evidence, relative to the run folder."""

    file: str
    lines: tuple[str, ...]

    @cached_property
    def sections(self) -> dict[str, list[tuple[int, str]]]:
        """Lines with their numbers, by section."""
        found: dict[str, list[tuple[int, str]]] = {}
        name = ""
        for number, line in enumerate(self.lines, start=1):
            if section := _SECTION.match(line):
                name = section["name"]
            else:
                found.setdefault(name, []).append((number, line))
        return found

    def _fact(self, name: str) -> str:
        return next(
            (line.partition(" ")[2] for _, line in self.sections.get("rank", ()) if line.partition(" ")[0] == name), ""
        )

    @property
    def role(self) -> str:
        """Empty in a plain job."""
        return self._fact("role")

    @property
    def rank(self) -> int:
        """Its number; -1 where the file was cut off."""
        number = self._fact("rank")
        return int(number) if number.isdecimal() else -1

    @property
    def node(self) -> str:
        """Where it runs."""
        return self._fact("node")

    @property
    def phase(self) -> str:
        """As it reported last; empty where it reports nothing."""
        words = self._fact("report").split(" ")
        return words[1] if len(words) > 1 else ""

    @cached_property
    def processes(self) -> list[Process]:
        """Its own first."""
        found = []
        for number, line in self.sections.get("processes", ()):
            words = line.split(" ", 4)
            if len(words) >= 4 and words[0].isdecimal() and words[2].lstrip("-").isdecimal():
                found.append(Process(int(words[0]), words[1], int(words[2]), words[3], "".join(words[4:]), number))
        return found

    @cached_property
    def stack(self) -> list[Frame]:
        """Of the main thread of the rank's own process, the innermost frame first."""
        process, inside, frames = 0, False, list[Frame]()
        for number, line in self.sections.get("stacks", ()):
            if found := _PROCESS.match(line):
                if process and frames:
                    break
                process = int(found["pid"])
            elif _MAIN.match(line):
                inside = True
            elif _OTHER.match(line):
                inside = False
            elif inside and (frame := _frame(line, number)):
                frames.append(frame)
        return frames

    @property
    def collective(self) -> Frame | None:
        """The call in which it waits for other ranks."""
        return next((frame for frame in self.stack if frame.collective), None)

    @property
    def own(self) -> Frame | None:
        """The innermost frame that is the user's."""
        outside = [f for f in self.stack if "site-packages" not in f.file and not re.search(r"/lib/python3|^<", f.file)]
        return outside[0] if outside else (self.stack[0] if self.stack else None)

    def opened(self) -> Iterator[tuple[int, str]]:
        """Files that a process of it has open and that may be what it reads or writes, with the line that names each."""
        for number, line in self.sections.get("files", ()):
            path = line.partition(" ")[2]
            if path.startswith("/") and not _DULL.search(path):
                yield number, path


def _frame(line: str, at: int) -> Frame | None:
    for pattern in _FRAMES:
        if found := pattern.match(line):
            return Frame(found["function"], found["file"], int(found["line"]), at)
    return None


def read(run_dir: Path, folder: Path) -> list[RankEvidence]:
    """All ranks that gave evidence, by role and rank; at most 1024."""
    found = []
    for path in sorted(folder.glob("**/rank-*.txt"))[:_MOST_RANKS]:
        try:
            text = files.read_bytes(path, most=2 * _MOST_BYTES).decode(errors="replace")
        except OSError:
            continue
        found.append(RankEvidence(file=path.relative_to(run_dir).as_posix(), lines=tuple(text.split("\n"))))
    return sorted((one for one in found if one.rank >= 0), key=lambda one: (one.role, one.rank))
