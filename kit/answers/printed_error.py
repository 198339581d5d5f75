"""An error as data: the last line of stderr when a command fails that was asked for --json."""

from __future__ import annotations

from pydantic import Field

from kit.answers.schema_versions import version
from kit.errors import ConfigError, KitError
from kit.schema.schema_base import Model


class ErrorFacts(Model):
    """The error of a failed command, as JSON."""

    kind: str = Field(alias="class", description="The class in kit.errors.")
    message: str
    file: str = Field(description="Of the first wrong value; empty if the error names none.")
    key: str = Field(description="Of the first wrong value; empty if the error names none.")
    hint: str = Field(alias="try", description="A command or a line that may help; empty without one.")
    exit_code: int = Field(description="Of the command.")


class PrintedError(Model):
    """What is printed, on one line."""

    schema_version: int
    error: ErrorFacts


def printed(error: KitError) -> str:
    """An error with its first fault, as one line of JSON. The message names all faults."""
    faults = error.faults if isinstance(error, ConfigError) else ()
    first = faults[0] if faults else None
    facts = ErrorFacts(
        kind=type(error).__name__,
        message=error.message,
        file=first.file if first else "",
        key=first.key if first else "",
        hint=error.hint or (first.hint if first else ""),
        exit_code=error.exit_code,
    )
    return PrintedError(schema_version=version("error"), error=facts).model_dump_json(by_alias=True, ensure_ascii=True)
