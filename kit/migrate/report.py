"""The report of a migration: each line of the script with its places, and what the whole has become."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

# key: it is in job.toml. kit: the kit does it by itself. out: it has no effect on the ranks. check: its place is not quite the
# same, or a step is left to the user. unread: the kit does not know what it does.
Kind = Literal["key", "kit", "out", "check", "unread"]
Outcome = Literal["whole", "workaround", "refused"]

_MEANING = {
    "key": "job.toml",
    "kit": "by the kit",
    "out": "left out, because",
    "check": "CHECK",
    "unread": "NOT READ",
}


class UnreadError(Exception):
    """Words that the kit cannot say in a job file; the message is the reason."""


@dataclass(kw_only=True)
class LinePlace:
    """Where one part of a line went. what: begins with that part, so that no value is dropped without its name."""

    kind: Kind
    what: str


class Places(list[LinePlace]):
    """The places of one entry while it is read."""

    def key(self, what: str) -> LinePlace:
        """Note what is in job.toml."""
        return self._new("key", what)

    def kit(self, what: str) -> LinePlace:
        """Note what the kit does by itself."""
        return self._new("kit", what)

    def out(self, what: str) -> LinePlace:
        """Note what is left out, and why."""
        return self._new("out", what)

    def check(self, what: str) -> LinePlace:
        """Note what differs, or is left to the user."""
        return self._new("check", what)

    def unread(self, what: str) -> LinePlace:
        """Note what has no place."""
        return self._new("unread", what)

    def _new(self, kind: Kind, what: str) -> LinePlace:
        self.append(LinePlace(kind=kind, what=what))
        return self[-1]


@dataclass(kw_only=True)
class LineEntry:
    """Some lines of a script, and where their parts went. lines: the first and the last, from 1. span: in bytes.

    file: empty for the script itself, else the worker script that it starts.
    """

    lines: tuple[int, int]
    span: tuple[int, int]
    text: str
    places: Places
    file: str = ""

    def has(self, *kinds: Kind) -> bool:
        """Whether a part of the entry is of one of these kinds."""
        return any(place.kind in kinds for place in self.places)


@dataclass(kw_only=True)
class Migration:
    """All entries, the keys of the job and of its cluster's file, and differences between the script and the rendered job.

    open: what differs and belongs to no one line. refused: why the whole has no job.
    """

    script: str
    entries: list[LineEntry] = field(default_factory=list)
    job: dict[str, Any] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    by_the_kit: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome:
        """refused: no job file is written. workaround: look at what is marked CHECK."""
        if self.refused or any(entry.has("unread") for entry in self.entries):
            return "refused"
        return "workaround" if self.open or any(entry.has("check") for entry in self.entries) else "whole"

    def close(self, text: str) -> None:
        """Sort the entries, and note each line that has none: none may be lost."""
        covered = {
            line for entry in self.entries if not entry.file for line in range(entry.lines[0], entry.lines[1] + 1)
        }
        begin = 0
        for number, line in enumerate(text.split("\n"), 1):
            size = len(line.encode())
            if line.strip() and number not in covered:
                places = Places()
                places.unread("the parser gives this line to no command")
                self.entries.append(
                    LineEntry(lines=(number, number), span=(begin, begin + size), text=line.strip(), places=places)
                )
            begin += size + 1
        self.entries.sort(key=lambda entry: (entry.file, entry.span))

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {**asdict(self), "outcome": self.outcome}

    def as_text(self) -> str:
        """The report for people."""
        lines = [f"{self.script}: {self.outcome}", *(f"refused: {reason}" for reason in self.refused)]
        lines += [f"CHECK: {reason}" for reason in self.open]
        for file in dict.fromkeys(entry.file for entry in self.entries):
            lines += ["", *([f"{file}, which the script starts:"] if file else [])]
            for entry in (entry for entry in self.entries if entry.file == file):
                first, *more = entry.text.splitlines() or [""]
                lines += [f"{entry.lines[0]:>4}  {first}", *(f"      {line}" for line in more)]
                lines += [f"        {_MEANING[place.kind]}: {place.what}" for place in entry.places]
        lines += _part("What the kit does by itself:", self.by_the_kit)
        lines += _part("Differences between the script and the job:", self.differences)
        lines += _part("Next:", self.next)
        return "\n".join(lines) + "\n"


def _part(title: str, lines: list[str]) -> list[str]:
    return ["", title, *(f"  {line}" for line in lines)] if lines else []
