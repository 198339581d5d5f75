"""A point's values as keys of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kit.config import Table
from kit.config.program_arguments import ProgramWords
from kit.schema.sweep import Value
from kit.sweeps.points.expand import OWN, Point
from kit.sweeps.points.program_options import text, with_option

_ARGS, _ENV = "args.", "env."


def job_keys(point: Point, args: Sequence[str]) -> Table:
    """The keys that a point sets, nested as in a job file. args: the program's arguments without the point."""
    table: Table = {}
    given = point.values.get("args", list(args))
    words = [text(word) for word in given] if isinstance(given, list | tuple) else given
    for key, value in point.values.items():
        if key.startswith(OWN) or key == "args":
            continue
        if key.startswith(_ARGS) and isinstance(words, list):
            words = with_option(words, key.removeprefix(_ARGS), value)
        else:
            _put(table, key.split("."), _typed(key, value))
    if "args" in point.values or any(key.startswith(_ARGS) for key in point.values):
        table["args"] = words
    return table


def clashes(point: Point, set_here: Mapping[str, Any]) -> list[str]:
    """Keys of the point that the command line sets as well."""
    keys = []
    for key in point.values:
        at: Any = set_here
        for part in key.split("."):
            at = at.get(part) if isinstance(at, Mapping) else None
        if at is not None:
            keys.append(key)
    return keys


def words_clash(point: Point, words: ProgramWords) -> list[str]:
    """Keys of the point that the words after `--` change as well."""
    return [key for key in point.values if words and (key == "args" or key.removeprefix(_ARGS) in words.options)]


def _typed(key: str, value: Value) -> Any:
    """Convert a value to its key's type: environment variables are text."""
    if key.startswith(_ENV) and not isinstance(value, tuple):
        return text(value)
    return list(value) if isinstance(value, tuple) else value


def _put(table: Table, parts: list[str], value: Any) -> None:
    for part in parts[:-1]:
        table = table.setdefault(part, {})
    table[parts[-1]] = value
