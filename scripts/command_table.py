#!/usr/bin/env python3
"""Writes kit/cli/command_table.py from the commands, so that kit/cli/plain_words.py can read them without typer.

    python scripts/command_table.py        # part of make reference

tests/unit/test_plain_words.py fails when the file differs from what this makes of the code.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from kit.cli import completion_candidates
from kit.cli.groups import GROUPS
from kit.cli.typer_later import LaterDeclaration

PLACE = Path(__file__).parents[1] / "kit" / "cli" / "command_table.py"
HEAD = '''"""The usual commands, for kit/cli/plain_words.py. Made by scripts/command_table.py: run `make reference`."""

from __future__ import annotations

# Parameter, kind of its value, whether it can be repeated, and the function of completion_candidates that completes it.
Parameter = tuple[str, str, bool, str]

# Command -> its arguments in order, and its options by each of their names. typer handles options that are not listed.
# fmt: off
COMMANDS: dict[str, tuple[tuple[Parameter, ...], dict[str, Parameter]]] = {
'''
KINDS = {str: "text", Path: "path", int: "number", bool: "flag"}
# Settings of a declaration that do not change how a word is read.
HARMLESS = {"help", "metavar", "show_default", "autocompletion", "param_decls", "default", "min", "rich_help_panel"}


def table() -> dict[str, Any]:
    """Command -> arguments and options, for the groups Jobs and Runs. A command with another kind of argument is left out."""
    made = {}
    for name, place in (GROUPS["Daily"] | GROUPS["Jobs"] | GROUPS["Runs"]).items():
        module, _, function = place.partition(".")
        if function == "app":
            continue
        arguments: list[Any] = []
        options: dict[str, Any] = {}
        if _read(getattr(import_module(f"kit.cli.{module}"), function), arguments, options):
            made[name] = (tuple(arguments), options)
    return made


def _read(function: Any, arguments: list[Any], options: dict[str, Any]) -> bool:
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        base, declared = _parts(hints[parameter.name])
        kind, several = _kind(base)
        is_argument = isinstance(declared, typer.models.ArgumentInfo)
        simple = bool(kind) and _is_harmless(declared) and parameter.default is not inspect.Parameter.empty
        if is_argument and not simple:
            return False
        if not simple:
            continue
        row = (parameter.name, kind, several, _completer(declared))
        if is_argument:
            arguments.append(row)
        else:
            options.update(_options(declared, row))
    return True


def _parts(hint: Any) -> tuple[Any, Any]:
    """A parameter's type, and its typer declaration."""
    if get_origin(hint) is Annotated:
        base, declared = get_args(hint)
        # A command that was imported before typer has a stored declaration.
        return base, declared.made() if isinstance(declared, LaterDeclaration) else declared
    return hint, None


def _kind(base: Any) -> tuple[str, bool]:
    if get_origin(base) in {Union, types.UnionType}:
        kinds = [one for one in get_args(base) if one is not type(None)]
        base = kinds[0] if len(kinds) == 1 else None
    several = get_origin(base) is list
    return KINDS.get(get_args(base)[0] if several else base, ""), several


def _is_harmless(declared: Any) -> bool:
    """Whether it declares only names, help and a minimum of 0."""
    if declared is None:
        return False
    usual = type(declared)(default=declared.default)
    said = {name for name, value in vars(declared).items() if value != getattr(usual, name)}
    return said <= HARMLESS and declared.min in {None, 0}


def _completer(declared: Any) -> str:
    return next((name for name, one in vars(completion_candidates).items() if one is declared.autocompletion), "")


def _options(declared: Any, row: tuple[str, str, bool, str]) -> Iterator[tuple[str, Any]]:
    name, kind, several, completer = row
    # In an annotation, typer first takes the first word as a default, and corrects that later.
    words = [word for word in (declared.default, *(declared.param_decls or ())) if isinstance(word, str)]
    plain = name.strip("_").replace("_", "-")
    words = words or [f"--{plain}/--no-{plain}" if kind == "flag" else f"--{plain}"]
    if kind != "flag":
        yield from ((word, row) for word in words)
        return
    for word in words:
        on, _, off = word.partition("/")
        yield on, (name, "on", several, completer)
        if off:
            yield off, (name, "off", several, completer)


def text() -> str:
    """The text of the whole file."""
    lines = []
    for name, (arguments, options) in table().items():
        lines += [f'    "{name}": (', "        (", *(f"            {_row(one)}," for one in arguments), "        ),"]
        lines += ["        {", *(f'            "{word}": {_row(one)},' for word, one in options.items()), "        },"]
        lines += ["    ),"]
    return HEAD + "\n".join(lines) + "\n}\n"


def _row(one: tuple[Any, ...]) -> str:
    return "(" + ", ".join(f'"{value}"' if isinstance(value, str) else repr(value) for value in one) + ")"


if __name__ == "__main__":
    PLACE.write_text(text(), encoding="utf-8")
    sys.exit(0)
