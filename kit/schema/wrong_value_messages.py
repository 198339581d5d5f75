"""Messages for wrong values, and named forms of text: a sentence and an example in place of a bare pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

_SHOWN = 80


class Invalid(ValueError):  # noqa: N818 - a validator's word to pydantic, which makes a ConfigError of it
    """A wrong value.

    problem: one sentence for the user. write: a value that works instead. hint: a command or a line that works, if a value alone
    cannot show it. allowed: the allowed values, if they can be listed. key: the place of the wrong value in the table, for a check
    of the whole table. at: the key that `write` belongs to, if it is another one.
    """

    def __init__(
        self,
        problem: str,
        *,
        write: object = None,
        hint: str = "",
        allowed: str = "",
        key: tuple[str | int, ...] = (),
        at: tuple[str | int, ...] = (),
    ) -> None:
        super().__init__(problem)
        self.problem, self.write, self.hint, self.allowed, self.key, self.at = problem, write, hint, allowed, key, at


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form of text.

    what: its name with an article, such as 'a time limit'. how: a description of the form. nearest: returns the probably intended
    value, or None if that is unclear; then the example is shown.
    """

    pattern: str
    what: str
    how: str
    example: str
    nearest: Callable[[str], str | None] = lambda _: None

    def check(self, value: str) -> str:
        """Return `value`; Invalid if it has another form."""
        if not self.holds(value):
            near = self.nearest(value)
            write = near if near is not None and self.holds(near) else self.example
            raise Invalid(f"{shown(value)} is not {self.what}: {self.how}", write=write)
        return value

    def holds(self, value: str) -> bool:
        """Whether the text has this form."""
        return re.fullmatch(self.pattern, value, re.ASCII) is not None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "pattern": f"^{self.pattern}$", "examples": [self.example]}


def shown(value: object) -> str:
    """Quote a value for a message: in TOML form with single quotes, shortened if it is long."""
    text = _written(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return repr(value[: 2 * _SHOWN])
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_written(one)}" for key, one in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_written, value)) + "]"
    return "nothing" if value is None else str(value)
