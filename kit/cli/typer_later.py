"""`typer`, imported when something of it is really used: its import takes longer than most commands.

What a command declares, such as `typer.Option("--json")`, is kept as it was written until typer is to read a command line. A
command line that kit/cli/plain_words.py can read never comes that far.
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
        """Stands for the module. Every name is typer's own but for the two that only declare."""

        def __getattr__(self, name: str) -> Any:
            if name in {"Option", "Argument"} and "typer" not in sys.modules:
                return lambda *words, **options: LaterDeclaration(name, words, options)
            return getattr(import_module("typer"), name)

    typer = _Later()


class LaterDeclaration:
    """One call of `typer.Option` or `typer.Argument`, for later."""

    def __init__(self, kind: str, words: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.kind, self.words, self.options = kind, words, options

    def made(self) -> Any:
        """What the call returns."""
        return getattr(import_module("typer"), self.kind)(*self.words, **self.options)


def declare(command: Any) -> Any:
    """The same function; its annotations hold typer's own objects now."""
    hints = get_type_hints(command, include_extras=True)
    for name, hint in hints.items():
        if get_origin(hint) is Annotated:
            kind, *notes = get_args(hint)
            made = [note.made() if isinstance(note, LaterDeclaration) else note for note in notes]
            command.__annotations__[name] = Annotated[(kind, *made)]
    return command
