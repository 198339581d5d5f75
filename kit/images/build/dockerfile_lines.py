"""The text of a Dockerfile: its directives, and its instructions with their continuation lines joined."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"#\s*([A-Za-z]\w*)\s*=\s*(\S.*?)\s*")
# A word ends at a blank outside quotes. Only a word that begins with << starts a here-document: `$((1<<n))` does not.
_WORD = re.compile(r"""(?:[^\s"'\\]|\\.|"(?:\\.|[^"\\])*"|'[^']*')+""")
_HEREDOC = re.compile(r"\d*<<-?([^<\s]+)")


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction, with its continuation lines joined. line, last: its lines in the file, from 1. heredoc: whether it has a
    here-document.
    """

    line: int
    word: str
    rest: str
    heredoc: bool = False
    last: int = 0

    @property
    def flags(self) -> tuple[str, ...]:
        """Its flags, as `--mount=type=cache,target=/x`."""
        found = re.match(r"(?:--\S+\s+)*", self.rest)
        return tuple(found[0].split()) if found else ()

    @property
    def words(self) -> tuple[str, ...]:
        """Its words after the flags, with their quotes."""
        return tuple(_WORD.findall(self.rest)[len(self.flags) :])


@dataclass(frozen=True, kw_only=True)
class Directive:
    """A parser directive, as `# syntax=docker/dockerfile:1`."""

    line: int
    name: str
    value: str


def directives(text: str) -> list[Directive]:
    """The directives. They count only before every other line (Dockerfile reference, "Parser directives")."""
    parsed: list[Directive] = []
    for number, line in enumerate(text.splitlines(), start=1):
        one = _DIRECTIVE.fullmatch(line.strip())
        if one is None:
            break
        parsed.append(Directive(line=number, name=one[1].lower(), value=one[2]))
    return parsed


def without(text: str, name: str) -> str:
    """The text without a directive. All instructions keep their line numbers, and the other directives stay directives."""
    known = directives(text)
    lines = text.splitlines()
    kept = [lines[one.line - 1] for one in known if one.name != name]
    head = [*kept, *["#"] * (len(known) - len(kept))]
    return "".join(f"{line}\n" for line in [*head, *lines[len(known) :]])


def with_image(text: str, at: Iterable[Instruction], image: str) -> str:
    """The text with another image in these FROM lines. All instructions keep their line numbers."""
    lines = text.splitlines()
    for one in at:
        lines[one.line - 1 : one.last] = [" ".join(("FROM", *one.flags, image, *one.words[1:]))] + [""] * (
            one.last - one.line
        )
    return "".join(f"{line}\n" for line in lines)


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions in their order, without comments."""
    sign = next((one.value for one in directives(text) if one.name == "escape"), "\\")
    lines = enumerate(text.splitlines(), start=1)
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        whole, last = line.strip(), number
        while whole.endswith(sign):
            following, more = next(lines, (0, "end"))
            if not following:
                whole = whole[:-1]
                break
            last = following
            # Comments and empty lines inside an instruction do not end it.
            if more.strip() and not more.lstrip().startswith("#"):
                whole = whole[:-1] + more.strip()
        word, _, rest = whole.partition(" ")
        ends = _heredocs(rest) if word.upper() in ("RUN", "COPY", "ADD") else []
        for end in ends:
            for last, inner in lines:  # noqa: B007  # the last line of the document is the instruction's
                if inner.strip() == end:
                    break
        yield Instruction(line=number, word=word.upper(), rest=rest.strip(), heredoc=bool(ends), last=last)


def _heredocs(rest: str) -> list[str]:
    """The lines that end the here-documents of an instruction."""
    found = [_HEREDOC.fullmatch(word) for word in _WORD.findall(rest)]
    return [one[1].strip("\"'") for one in found if one]
