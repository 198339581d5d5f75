"""Table: numbers that a sweep looks up. `tables/<name>.toml`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from kit.spec.schema_base import Model, Text
from kit.spec.sweep import Scalar
from kit.spec.wrong_value_messages import Form, Invalid, shown

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

    description: Text = Field(default="", description="What the values are, with their unit.")
    source: Text = Field(default="", description="Where the numbers or the formula come from.")
    by: tuple[Identifier, ...] = Field(
        min_length=1, description="Names of a point that choose the value, outermost first."
    )
    defaults: dict[Identifier, Scalar] = Field(
        default={}, description="Names that expressions here use, where the point has none."
    )
    values: dict[str, Any] = Field(
        min_length=1, description="As many tables inside each other as `by` has names. '*' stands for any other value."
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
