"""Options of other people's programs in roles: nested, by release, from a file of kit/frameworks/.

The file comes from the programs' own configuration classes (tests/foreign/prime_rl_options.py).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kit.errors import Fault, nearest
from kit.validation import toml

Lists = Mapping[str, Mapping[str, str]]


@cache
def lists_of(file: str) -> Lists:
    """Program -> option -> the releases that have it, separated by blanks."""
    found: Lists = tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    return found


def known(options: Mapping[str, str], releases: frozenset[str]) -> dict[str, str]:
    """The options of some releases; `name.*` is a table whose keys are the user's own."""
    return {name: has for name, has in options.items() if not releases.isdisjoint(has.split())}


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each value, and each empty table, by its dotted name. The tables of a list have no index."""
    for key, value in table.items():
        tables = [value] if isinstance(value, Mapping) else value if _holds_tables(value) else []
        for inner in tables:
            if inner:
                yield from flat(inner, f"{prefix}{key}.")
        if not any(tables):
            yield f"{prefix}{key}", value


def _holds_tables(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(one, Mapping) for one in value)


def faults(
    name: str, role: str, given: Mapping[str, Any], options: Mapping[str, str], releases: Sequence[str]
) -> Iterator[Fault]:
    """The options that a program does not have, each once.

    name, role: of the job's table, and of the role. given: the program's options. options: one program of a file. releases: those
    that the program may be, oldest first; without them, it has all options.
    """
    here = known(options, frozenset(releases)) if releases else options
    names = [option for option in here if not option.endswith(".*")]
    for path, value in dict(flat(given)).items():
        if path in here or _is_the_users(path, here):
            continue
        near, has = _nearest(path, names), options.get(path, "").split()
        problem = "its program has no such option" + (f" in release {', '.join(releases)}" if releases else "")
        problem += f"; {' and '.join(has)} {'have' if len(has) > 1 else 'has'} it" if has else ""
        problem += f"; did you mean {near!r}?" if near else ""
        hint = _line(f"{name}.{role}", near, value) if near else "remove the line"
        yield Fault(key=f"{role}.{path}", problem=problem, allowed="" if near else _beside(path, names), hint=hint)


def _is_the_users(path: str, here: Mapping[str, str]) -> bool:
    """Whether an option is in a table whose keys are the user's own."""
    parts = path.split(".")
    return any(f"{'.'.join(parts[:place])}.*" in here for place in range(1, len(parts)))


def _beside(path: str, names: Sequence[str]) -> str:
    """The first options of the same table."""
    parent = path.rpartition(".")[0]
    found = [name for name in names if name.rpartition(".")[0] == parent]
    return ", ".join(found[:12]) + (", …" if len(found) > 12 else "")


def _nearest(path: str, names: Sequence[str]) -> str | None:
    """The option that was meant: one of the same table, the only one of this name in another, or one that is written alike."""
    parent, _, last = path.rpartition(".")
    beside = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == parent}
    if (near := nearest(last, beside)) is not None:
        return beside[near]
    moved = [name for name in names if name.rpartition(".")[2] == last]
    return moved[0] if len(moved) == 1 else nearest(path, names, cutoff=0.75)


def _line(table: str, near: str, value: object) -> str:
    parent, _, last = near.rpartition(".")
    return f"[{table}{'.' if parent else ''}{parent}]\n       {last} = {toml(value)}"
