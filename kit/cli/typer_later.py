"""`typer`, imported only when it is really used: its import takes longer than most commands.

A declaration in a command, such as `typer.Option("--json")`, is stored until typer has to parse a command line. For command lines
that kit/cli/plain_words.py can parse, this is never needed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

__all__ = ["LaterDeclaration", "declare", "typer"]

if TYPE_CHECKING:
    import typer
else:

    class _Later:
        """Stands for the module typer. All names are typer's own, except the two that only declare parameters."""

        def __getattr__(self, name: str) -> Any:
            if name in {"Option", "Argument"} and "typer" not in sys.modules:
                return lambda *words, **options: LaterDeclaration(name, words, options)
            return getattr(import_module("typer"), name)

    typer = _Later()


class LaterDeclaration:
    """One stored call of `typer.Option` or `typer.Argument`."""

    def __init__(self, kind: str, words: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.kind, self.words, self.options = kind, words, options

    def made(self) -> Any:
        """The result of the call."""
        return getattr(import_module("typer"), self.kind)(*self.words, **self.options)


def declare(command: Any) -> Any:
    """The same function, with typer's own objects in its annotations, and in its signature if it has one of its own."""
    for name, hint in get_type_hints(command, include_extras=True).items():
        command.__annotations__[name] = _declared(hint)
    if own := vars(command).get("__signature__"):
        parameters = [one.replace(annotation=_declared(one.annotation)) for one in own.parameters.values()]
        command.__signature__ = own.replace(parameters=parameters)
    return command


def _declared(hint: Any) -> Any:
    if get_origin(hint) is not Annotated:
        return hint
    kind, *notes = get_args(hint)
    return Annotated[(kind, *[note.made() if isinstance(note, LaterDeclaration) else note for note in notes])]
