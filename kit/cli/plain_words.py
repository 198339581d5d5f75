"""Parses plain command lines of the usual commands without typer, whose import takes longer than most of them run.

It leaves everything else to typer, which also prints the messages: an error, --help, a value that begins with a dash, a number out
of its range. kit/cli/command_table.py lists what it can parse; the table is made from the commands (`make reference`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from kit.cli.command_table import COMMANDS
from kit.cli.groups import PLACES

# Values of COMP_WORDS that a shell and str.split() split in the same way.
_PLAIN_LINE = r"[A-Za-z0-9_ ./:@%+,=-]*"


class Command(NamedTuple):
    """A command, and the arguments for its function."""

    name: str
    keywords: dict[str, Any]

    def function(self) -> Callable[..., Any]:
        """The function itself; its module is imported here."""
        module, _, function = PLACES[self.name][1].partition(".")
        found: Callable[..., Any] = getattr(import_module(f"kit.cli.{module}"), function)
        return found


def read(words: Sequence[str]) -> Command | None:
    """Parse a command line; None if typer has to parse it."""
    if not words or words[0] not in COMMANDS or "_KIT_COMPLETE" in os.environ:
        return None
    arguments, options = COMMANDS[words[0]]
    keywords: dict[str, Any] = {}
    free: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-"):
            free.append(word)
            continue
        name, equals, after = word.partition("=") if word.startswith("--") else (word, "", "")
        if name not in options:
            return None
        parameter, kind, several, _ = options[name]
        if kind in {"on", "off"}:
            if equals or parameter in keywords:
                return None
            keywords[parameter] = kind == "on"
            continue
        value = _value(kind, after if equals else next(rest, ""))
        if value is None or (parameter in keywords and not several):
            return None
        keywords[parameter] = [*keywords.get(parameter, ()), value] if several else value
    return Command(words[0], keywords) if _assign_words(free, arguments, keywords) else None


def _assign_words(free: list[str], arguments: Sequence[tuple[str, str, bool, str]], keywords: dict[str, Any]) -> bool:
    """Assign the words without an option to the arguments, in order. Return whether all words could be assigned."""
    for parameter, kind, several, _ in arguments:
        taken = free if several else free[:1]
        free = free[len(taken) :]
        values = [_value(kind, word) for word in taken]
        if None in values:
            return False
        if values:
            keywords[parameter] = values if several else values[0]
    return not free


def _value(kind: str, word: str) -> Any:
    """Convert a word for its parameter; None if typer has to do it."""
    if not word or word.startswith("-"):
        return None
    if kind == "number":
        return int(word) if word.isascii() and word.isdecimal() and len(word) < 10 else None
    return Path(word) if kind == "path" else word


def completed() -> str | None:
    """The completions for bash, for the command line in COMP_WORDS; None if typer has to find them."""
    line, number = os.environ.get("COMP_WORDS", ""), os.environ.get("COMP_CWORD", "")
    if os.environ["_KIT_COMPLETE"] != "complete_bash" or not re.fullmatch(_PLAIN_LINE, line) or not number.isdecimal():
        return None
    words = line.split()
    before, begun = words[1 : int(number)], words[int(number) : int(number) + 1]
    start = begun[0] if begun else ""
    if not words or len(words) < int(number) or (start and not start[0].isalnum()):
        return None
    if not before:
        return "\n".join(name for name in PLACES if name.startswith(start))
    completer = _completer(before)
    if completer is None:
        return None
    from kit.cli import completion_candidates

    names: Sequence[str] = getattr(completion_candidates, completer)(start)
    return "\n".join(name for name in names if name.startswith(start))


def _completer(before: list[str]) -> str | None:
    """The function of completion_candidates for the word after these; None if there is none, or it is not known."""
    if before[0] not in COMMANDS:
        return None
    arguments, options = COMMANDS[before[0]]
    places = iter(arguments)
    current = next(places, None)
    rest = iter(before[1:])
    for word in rest:
        if not word.startswith("-"):
            if current is not None and not current[2]:
                current = next(places, None)
            continue
        if word not in options:
            return None
        _, kind, _, completer = options[word]
        if kind not in {"on", "off"} and next(rest, None) is None:
            return completer or None
    return (current[3] or None) if current is not None else None
