"""Reads and sets options of the program in the job's `args`: `args.--lr = 0.1`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kit.config.program_arguments import is_value
from kit.schema.sweep import Scalar, Value
from kit.sweeps.points.key_names import identifier

_NUMBER = re.compile(r"^-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")


def with_option(args: Sequence[str], option: str, value: Value) -> list[str]:
    """`args` with `option` set: at its present place, or at the end. True gives the bare option, False removes it.

    Several values become several words after the option, in place of all words up to the next option. Repeated occurrences are
    reduced to one.
    """
    kept: list[str] = []
    position: int | None = None
    words = list(args)
    joined = False
    while words:
        word = words.pop(0)
        if word != option and not word.startswith(f"{option}="):
            kept.append(word)
            continue
        position = len(kept) if position is None else position
        joined = word != option
        gone = 0 if joined or isinstance(value, bool) else len(words) if isinstance(value, tuple) else 1
        while gone and words and is_value(words[0]):
            words.pop(0)
            gone -= 1
    position = len(kept) if position is None else position
    return kept[:position] + _words(option, value, joined) + kept[position:]


def read_option(args: Sequence[str], name: str) -> Scalar | None:
    """The last value of the option that expressions call `args.<name>`, as a number if possible; None if it is not given."""
    last_value: Scalar | None = None
    for at, word in enumerate(args):
        option, equals, value = word.partition("=")
        if not option.startswith("-") or identifier(f"args.{option}") != f"args.{name}":
            continue
        following = args[at + 1 : at + 2]
        if not equals:
            value = following[0] if following and is_value(following[0]) else ""
        last_value = _number(value) if equals or value else True
    return last_value


def option_names(args: Sequence[str]) -> list[str]:
    """The names of the options in `args` for expressions: `args.batch_size` for `--batch-size`."""
    return [identifier(f"args.{word.partition('=')[0]}") for word in args if not is_value(word)]


def text(value: Scalar) -> str:
    """A value in a form for a program. A float gets the shortest text that gives the same number."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _words(option: str, value: Value, joined: bool) -> list[str]:
    if isinstance(value, bool):
        return [option] if value else []
    if isinstance(value, tuple):
        return [option, *map(text, value)]
    return [f"{option}={text(value)}"] if joined else [option, text(value)]


def _number(word: str) -> Scalar:
    if not _NUMBER.match(word):
        return word
    return int(word) if re.fullmatch(r"-?\d+", word) else float(word)
