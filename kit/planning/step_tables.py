"""Groups the steps of roles that differ only in a few values, as those of replica groups do: the batch script has such a step once.

A group of several steps is a function of bash and a table, with one line for each step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from kit.planning import steps
from kit.planning.decisions import Decisions
from kit.planning.placement import RolePlacement
from kit.render import quote

# Variables of a step's environment that differ between such roles -> name of their column.
_OWN_ENV = {"KIT_ROLE_INDEX": "index", "KIT_GPUS": "gpus"}
_MARK = re.compile("\0([a-z]+)\0")


@dataclass(frozen=True, kw_only=True)
class StepGroup:
    """Steps that follow each other, and differ only in the values of `rows`.

    number: of its first step. last: of its last one. facts, env, argv: words of bash, with the names of columns where steps differ.
    columns: of a row; the first is the step's number.
    """

    number: int
    last: int
    facts: tuple[str, ...]
    env: tuple[str, ...]
    argv: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[str, ...]


@dataclass(frozen=True)
class _Form:
    """A step with marks in place of the values that differ between alike roles."""

    facts: tuple[tuple[str, str], ...]
    env: tuple[str, ...]
    argv: tuple[str, ...]


def step_groups(made: Decisions) -> list[StepGroup]:
    """All steps of a run's roles, in order."""
    forms = [(number, placed, _form(made, placed)) for number, placed in enumerate(made.roles)]
    found = []
    for form, alike in groupby(forms, key=lambda one: one[2]):
        found.append(_group(form, [(number, placed) for number, placed, _ in alike]))
    return found


def _form(made: Decisions, placed: RolePlacement) -> _Form:
    general = replace(placed, name=_mark("name"))
    facts = {**general.facts(), "variable": _mark("variable"), "first": _mark("first")}
    names = [pair.partition("=")[0] for pair in placed.env()]
    env = [f"{n}={_mark(_OWN_ENV[n])}" if n in _OWN_ENV else pair for n, pair in zip(names, placed.env(), strict=True)]
    return _Form(
        facts=tuple((name, str(value)) for name, value in facts.items()),
        env=tuple(env),
        argv=tuple(steps.role_step(made, general)),
    )


def _group(form: _Form, alike: Sequence[tuple[int, RolePlacement]]) -> StepGroup:
    own = [name for pair in form.env if (name := pair.partition("=")[0]) in _OWN_ENV]
    columns = ("number", "name", "first", *(_OWN_ENV[name] for name in own))
    rows = [_row(number, placed, own) for number, placed in alike]
    return StepGroup(
        number=alike[0][0],
        last=alike[-1][0],
        facts=tuple(f"[{name}]={_word(value)}" for name, value in form.facts),
        env=tuple(map(_word, form.env)),
        argv=tuple(map(_word, form.argv)),
        columns=columns,
        rows=tuple(_aligned(rows)),
    )


def _row(number: int, placed: RolePlacement, own: Sequence[str]) -> list[str]:
    env = dict(pair.split("=", 1) for pair in placed.env())
    return [quote(str(value)) for value in (number, placed.name, placed.first, *(env[name] for name in own))]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [" ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _mark(column: str) -> str:
    return f"\0{column}\0"


def _word(text: str) -> str:
    """A text as one word of bash, with a variable for each mark."""
    pieces = _MARK.split(text)
    words = [f'"${{{piece}}}"' if at % 2 else quote(piece) if piece else "" for at, piece in enumerate(pieces)]
    return "".join(words) or "''"
