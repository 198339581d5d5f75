"""Evidence of a stall: reads the files that bin/evidence.sh wrote for each rank, for the rules of stall_rules.py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath

from kit.files import untrusted_files
from kit.health import collectives
from kit.health.collectives import Collective

_MOST_BYTES = 128 << 10
# Of more ranks, or more bytes in all, the rest is not read. Whoever is not read has not been silent: see GatheredEvidence.
_MOST_RANKS, _MOST_BYTES_READ = 16384, 256 << 20
_NAMED = re.compile(r"(?:rank-(?P<rank>\d{1,9})|node-(?P<node>.+))\.txt")
_SECTION = re.compile(r"^== (?P<name>[a-z ]+)$")
# Frames in faulthandler's form, and in py-spy's form.
_FRAMES = (
    re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$'),
    re.compile(r"^    (?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)$"),
)
_PROCESS = re.compile(r"^Process (?P<pid>\d+)")
# The main thread is the one that receives the signal. py-spy names threads only if the program has imported threading.
_MAIN = re.compile(r'^(?:Current thread |Thread .*"MainThread")')
_THREAD = re.compile(r"^Thread (?P<number>\S+)")
# py-spy marks the thread that holds the GIL. kit_recorder's thread gives no answer while another thread holds it.
_HOLDS_GIL = re.compile(r'^Thread [^"]*\+gil\)')
_NO_ANSWER = re.compile(r"^no answer within ")
_COLLECTIVES = re.compile(
    r"^(?:all_?reduce|all_?gather\w*|reduce\w*|broadcast\w*|(?:monitored_)?barrier|all_?to_?all\w*|gather\w*|scatter\w*|i?send|i?recv|wait)$"
)
# Files that every Python program and the kit open. They do not show what a rank is doing.
_COMMON_FILES = re.compile(
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
        """Function, file and line, as shown in answers."""
        return f"{self.function} ({PurePosixPath(self.file).name}:{self.line})"

    @property
    def collective(self) -> bool:
        """Whether the frame waits for other ranks in torch.distributed."""
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
    """The evidence of one rank. file: its path, relative to the run folder."""

    file: str
    lines: tuple[str, ...]

    @cached_property
    def _sections(self) -> dict[str, tuple[int, int]]:
        """The places of each section's first line, and after its last."""
        begins = [(place, found["name"]) for place, line in enumerate(self.lines) if (found := _SECTION.match(line))]
        # A full disk leaves files without any section.
        ends = [*(place for place, _ in begins[1:]), len(self.lines)] if begins else []
        return {name: (place + 1, end) for (place, name), end in zip(begins, ends, strict=True)}

    def section(self, name: str) -> Iterator[tuple[int, str]]:
        """The numbered lines of a section; none where the file has no such section."""
        first, end = self._sections.get(name, (0, 0))
        return enumerate(self.lines[first:end], start=first + 1)

    def _fact(self, name: str) -> str:
        return next((line.partition(" ")[2] for _, line in self.section("rank") if line.partition(" ")[0] == name), "")

    @property
    def role(self) -> str:
        """The rank's role; empty in a plain job."""
        return self._fact("role")

    @property
    def rank(self) -> int:
        """The rank's number; -1 if the file is truncated."""
        number = self._fact("rank")
        return int(number) if number.isdecimal() else -1

    @property
    def node(self) -> str:
        """The rank's node."""
        return self._fact("node")

    @property
    def phase(self) -> str:
        """The last reported phase; empty if the rank reports none."""
        words = self._fact("report").split(" ")
        return words[1] if len(words) > 1 else ""

    @cached_property
    def processes(self) -> list[Process]:
        """The rank's processes, its own first."""
        found = []
        for number, line in self.section("processes"):
            words = line.split(" ", 4)
            if len(words) >= 4 and words[0].isdecimal() and words[2].lstrip("-").isdecimal():
                found.append(Process(int(words[0]), words[1], int(words[2]), words[3], "".join(words[4:]), number))
        return found

    @cached_property
    def stack(self) -> list[Frame]:
        """The stack of the main thread of the rank's own process, the innermost frame first.

        Where no thread has its name or its number, it is the first: py-spy lists the oldest first. It does not always read a
        thread's name, and a thread's number in a container is another than the process's number outside.
        """
        process, inside, threads = "", 0, 0
        frames, first = list[Frame](), list[Frame]()
        for number, line in self.section("stacks"):
            if found := _PROCESS.match(line):
                if process and (frames or first):
                    break
                process = found["pid"]
            elif _is_main(line, process):
                inside = 2
            elif _THREAD.match(line):
                threads += 1
                inside = int(threads == 1)
            elif inside and (frame := _frame(line, number)):
                (frames if inside == 2 else first).append(frame)
        return frames or first

    @cached_property
    def calls(self) -> list[Collective]:
        """Its last collectives, from torch's flight recorder."""
        return collectives.parse(self.section("recorder"))

    @property
    def holds(self) -> int:
        """The line which shows that one of its threads holds the GIL; 0 if none does."""
        silent = (number for number, line in self.section("recorder") if _NO_ANSWER.match(line))
        return next(silent, 0) or self._main_holds_gil()

    def _main_holds_gil(self) -> int:
        process = ""
        for number, line in self.section("stacks"):
            if found := _PROCESS.match(line):
                process = found["pid"]
            elif _NO_ANSWER.match(line) or (_HOLDS_GIL.match(line) and _is_main(line, process)):
                return number
        return 0

    @property
    def collective(self) -> Frame | None:
        """The call in which it waits for other ranks."""
        return next((frame for frame in self.stack if frame.collective), None)

    @property
    def own(self) -> Frame | None:
        """The innermost frame of the user's code."""
        outside = [f for f in self.stack if "site-packages" not in f.file and not re.search(r"/lib/python3|^<", f.file)]
        return outside[0] if outside else (self.stack[0] if self.stack else None)

    def opened(self) -> Iterator[tuple[int, str]]:
        """Open files of its processes that it may be reading or writing, with the number of the line that names each."""
        for number, line in self.section("files"):
            path = line.partition(" ")[2]
            if path.startswith("/") and not _COMMON_FILES.search(path):
                yield number, path


def _is_main(line: str, process: str) -> bool:
    """Whether a line of a stack begins the main thread. Its thread number equals the process number."""
    found = _THREAD.match(line)
    return bool(_MAIN.match(line)) or bool(found and process and found["number"] == process)


def _frame(line: str, at: int) -> Frame | None:
    for pattern in _FRAMES:
        if found := pattern.match(line):
            return Frame(found["function"], found["file"], int(found["line"]), at)
    return None


@dataclass(frozen=True, kw_only=True)
class GatheredEvidence:
    """What the nodes wrote at one alarm.

    ranks: what was read of it, by role and rank. answered: role and number of every rank that gave something. nodes: those that
    did.
    """

    ranks: tuple[RankEvidence, ...]
    answered: frozenset[tuple[str, int]]
    nodes: frozenset[str]


def read_evidence(run_dir: Path, folder: Path, *, first: tuple[str, str] = ("", "")) -> GatheredEvidence:
    """Read the evidence in `folder`. first: the role and rank to begin with, in case that not all can be read."""
    places, nodes = list[tuple[str, int, Path]](), set[str]()
    for path in folder.glob("**/*.txt"):
        role = path.parent.relative_to(folder).as_posix().removeprefix(".")
        named = _NAMED.fullmatch(path.name)
        if named and named["node"] and not role:
            nodes.add(named["node"])
        elif path.name.startswith("rank-"):
            places.append((role, int(named["rank"]) if named else -1, path))
    places.sort(key=lambda place: ((place[0], str(place[1])) != first, *place))
    ranks = sorted(_read(run_dir, [path for _, _, path in places]), key=lambda one: (one.role, one.rank))
    answered = {(role, rank) for role, rank, _ in places} | {(one.role, one.rank) for one in ranks}
    return GatheredEvidence(
        ranks=tuple(ranks), answered=frozenset(answered), nodes=frozenset(nodes | {one.node for one in ranks})
    )


def _read(run_dir: Path, paths: Iterable[Path]) -> Iterator[RankEvidence]:
    # Most lines are those of other ranks, too, and are kept once.
    lines: dict[str, str] = {}
    left = _MOST_BYTES_READ
    for path in islice(paths, _MOST_RANKS):
        try:
            content = untrusted_files.read_bytes(path, most=2 * _MOST_BYTES)
        except OSError:
            continue
        left -= len(content)
        if left < 0:
            return
        text = content.decode(errors="replace")
        one = RankEvidence(
            file=path.relative_to(run_dir).as_posix(),
            lines=tuple(lines.setdefault(line, line) for line in text.split("\n")),
        )
        if one.rank >= 0:
            yield one
