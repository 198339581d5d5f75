"""Sweep: many points of one job. The `[sweep]` table of job.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from kit.spec.base import Model, Name

# What a key may take: anything that TOML writes. Text that starts with `=` is an expression, with `lookup:` a table's value.
Scalar = bool | int | float | str
Value = Scalar | tuple[Scalar, ...]

_KEY = re.compile(
    r"^(args\.--?[A-Za-z0-9][A-Za-z0-9_.-]*|var\.[a-z][a-z0-9_]*|[a-z][a-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*)$"
)


def _key(value: str) -> str:
    if not _KEY.match(value):
        raise ValueError(
            "a key of the job, such as resources.nodes; an option of the program, such as args.--lr; "
            "or var.NAME, a name of the sweep's own"
        )
    return value


def _flat(tables: object) -> object:
    """`{args: {--lr: [1, 2]}}`, as TOML reads a dotted key, becomes `{args.--lr: [1, 2]}`."""
    if not isinstance(tables, Mapping):
        return tables
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping) and not _DISTRIBUTIONS & value.keys():
            inner = _flat(value)
            assert isinstance(inner, dict)
            flat |= {f"{key}.{name}": one for name, one in inner.items()}
        else:
            flat[key] = value
    return flat


_DISTRIBUTIONS = {"uniform", "log_uniform", "choice"}

Key = Annotated[str, AfterValidator(_key)]
Values = Annotated[tuple[Value, ...], Field(min_length=1)]
Lists = Annotated[dict[Key, Values], BeforeValidator(_flat)]
Assigned = Annotated[dict[Key, Value], BeforeValidator(_flat)]


class Distribution(Model):
    """Where a random key's values come from: exactly one of the three."""

    uniform: tuple[float, float] | None = Field(default=None, description="Between two numbers.")
    log_uniform: tuple[float, float] | None = Field(
        default=None, description="Between two positive numbers, evenly in the logarithm."
    )
    choice: Values | None = Field(default=None, description="One of these.")
    integer: bool = Field(default=False, description="Round to a whole number.")

    @model_validator(mode="after")
    def _one_and_in_order(self) -> Distribution:
        given = [name for name in sorted(_DISTRIBUTIONS) if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of {', '.join(sorted(_DISTRIBUTIONS))}")
        span = self.uniform or self.log_uniform
        if span and span[0] >= span[1]:
            raise ValueError(f"the lower bound first: {span[0]} is not below {span[1]}")
        if self.log_uniform and self.log_uniform[0] <= 0:
            raise ValueError("log_uniform needs positive bounds")
        if self.integer and self.choice:
            raise ValueError("integer belongs to uniform and log_uniform; write whole numbers in choice")
        return self


class Random(Model):
    """Points drawn at random. The same seed draws the same points; a key's draws do not depend on the other keys."""

    count: int = Field(ge=1, le=100_000, description="How many draws.")
    seed: int = Field(default=0, ge=0)
    keys: Annotated[dict[Key, Distribution], BeforeValidator(_flat)] = Field(min_length=1)


class Sweep(Model):
    """The points of a job: the product of `grid`, `zip`, `points` and `random`, less those that `when` refuses."""

    grid: Lists = Field(default={}, description="Every combination of these keys' values.")
    zip: Lists = Field(default={}, description="These keys' values side by side; all lists have one length.")
    points: dict[Name, Assigned] = Field(default={}, description="Named settings of several keys.")
    random: Random | None = Field(default=None, description="Random draws.")
    set: Assigned = Field(default={}, description="Keys that every point gets; mostly expressions of the others.")
    when: tuple[str, ...] = Field(
        default=(), description="Conditions that a point must meet, such as 'lr < 0.1 or optimizer == \"sgd\"'."
    )
    parallel: int | None = Field(default=None, ge=1, description="How many points of one array run at once, at most.")
    max_nodes: int | None = Field(
        default=None, ge=1, description="How many nodes the points of one array use at once, at most."
    )
    metric: str | None = Field(
        default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_./-]*$", description="What `kit results` sorts by."
    )
    goal: Literal["min", "max"] = Field(default="min", description="Whether a small or a large metric is better.")

    @field_validator("zip")
    @classmethod
    def _one_length(cls, lists: dict[str, tuple[Value, ...]]) -> dict[str, tuple[Value, ...]]:
        lengths = {key: len(values) for key, values in lists.items()}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{key} has {count}" for key, count in lengths.items())
            raise ValueError(f"lists of one length; {said}")
        return lists

    @model_validator(mode="after")
    def _each_key_once(self) -> Sweep:
        drawn = self.random.keys if self.random else {}
        named = {key for values in self.points.values() for key in values}
        places = {"grid": self.grid, "zip": self.zip, "points": named, "random": drawn, "set": self.set}
        twice = []
        for key in sorted({k for keys in places.values() for k in keys}):
            holding = [place for place, keys in places.items() if key in keys]
            if len(holding) > 1:
                twice.append(f"{key} stands in {' and in '.join(holding)}")
        if twice:
            raise ValueError(f"one source for each key: {'; '.join(twice)}")
        if not (self.grid or self.zip or self.points or self.random):
            raise ValueError("at least one of grid, zip, points and random: there is no point yet")
        return self
