"""An error as data: the last line of stderr when a command fails that was asked for --json."""

from __future__ import annotations

from typing import TypedDict

from kit.errors import ConfigError, KitError

VERSION = 1

ErrorFacts = TypedDict(
    "ErrorFacts",
    {"class": str, "message": str, "file": str, "key": str, "try": str, "exit_code": int},
)
ErrorFacts.__doc__ = """An error. class: in kit.errors. file, key: of the first wrong value; empty if the error names none. try: a
command or a line that may help; empty without one. exit_code: of the command."""


class PrintedError(TypedDict):
    """What is printed, on one line."""

    schema_version: int
    error: ErrorFacts


def printed(error: KitError) -> PrintedError:
    """An error with its first fault. The message names them all."""
    faults = error.faults if isinstance(error, ConfigError) else ()
    first = faults[0] if faults else None
    return {
        "schema_version": VERSION,
        "error": {
            "class": type(error).__name__,
            "message": error.message,
            "file": first.file if first else "",
            "key": first.key if first else "",
            "try": error.hint or (first.hint if first else ""),
            "exit_code": error.exit_code,
        },
    }
