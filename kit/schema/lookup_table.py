"""Table: numbers that a sweep looks up. `tables/<name>.toml`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from kit.schema.schema_base import Model, Text
from kit.schema.sweep import Scalar
from kit.schema.wrong_value_messages import Form, Invalid, shown

Identifier = Annotated[
    str,
    Form(
        pattern=r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*",
        what="the name of a value",
        how="lower-case letters, digits and _, with points between the parts",
        example="model.params",
        nearest=lambda text: text.lower().replace("-", "_"),
    ),
]


class Table(Model):
    """A value for each combination of the keys in `by`. `lookup:NAME` reads it; `lookup:NAME.COLUMN` reads one column of a row."""

    description: Text = Field(default="", description="The meaning of the values, with their unit.")
    source: Text = Field(default="", description="The source of the numbers or of the formula.")
    by: tuple[Identifier, ...] = Field(
        min_length=1, description="Names whose values in a point choose the entry, outermost table first."
    )
    defaults: dict[Identifier, Scalar] = Field(
        default={},
        description="Values for names that the expressions of this table use, if the point does not set them.",
    )
    values: dict[str, Any] = Field(
        min_length=1,
        description="The entries, in tables inside each other: one level for each name in `by`. The key '*' stands for any "
        "other value.",
    )

    @field_validator("values")
    @classmethod
    def _looked_up(cls, values: dict[str, Any]) -> dict[str, Any]:
        return cls._only_values(values)

    @classmethod
    def _only_values(cls, values: dict[str, Any], above: tuple[str, ...] = ()) -> dict[str, Any]:
        for key, value in values.items():
            if isinstance(value, dict):
                cls._only_values(value, (*above, key))
            elif not isinstance(value, bool | int | float | str):
                problem = (
                    f"{shown(value)} cannot be looked up: a value is a number, text, true or false, or a table of these"
                )
                raise Invalid(problem, key=(*above, key), hint=f"{key} = 1")
        return values
