"""Sweep: many points of one job. The `[sweep]` table of job.toml."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from kit.schema.metric_goals import Goal, goal_of
from kit.schema.schema_base import Model, Name
from kit.schema.wrong_value_messages import Form, Invalid, shown

METRIC = Form(
    pattern=r"[A-Za-z_][A-Za-z0-9_./-]*",
    what="the name of a metric",
    how="letters, digits and _ . / -, with a letter or _ first, as the program writes it into metrics.jsonl",
    example="test_loss",
    nearest=lambda text: re.sub(r"[^A-Za-z0-9_./-]+", "_", text),
)

# Possible values of a key: everything that TOML can write. Text that starts with `=` is an expression, with `lookup:` a table's
# value.
Scalar = bool | int | float | str
Value = Scalar | tuple[Scalar, ...]

_KEY = re.compile(
    r"^(args\.--?[A-Za-z0-9][A-Za-z0-9_.-]*|var\.[a-z][a-z0-9_]*|[a-z][a-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*)$"
)


def _key(value: str) -> str:
    if not _KEY.match(value):
        raise Invalid(
            "a sweep varies a key of the job (resources.nodes), an option of the program (args.--lr), or a variable of its own "
            "(var.NAME)",
            write=f"args.--{re.sub(r'[^A-Za-z0-9_.-]+', '-', value).strip('-.')}",
        )
    return value


def _flat(tables: object) -> object:
    """`{args: {--lr: [1, 2]}}`, TOML's form of a dotted key, becomes `{args.--lr: [1, 2]}`."""
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

# More are refused before they are made: each costs memory and time, and Slurm's arrays have 1,000 to 4,000,000 tasks.
MOST_COMBINATIONS = 100_000
# This many keys of a grid that is too large are named.
_LISTED = 6


def _number(count: int) -> str:
    """A number for people. A product of many lists may have more digits than a line."""
    return f"{count:,}" if count < 10**15 else f"about 10^{round(math.log10(count))}"


class Distribution(Model):
    """The distribution of a key's values: exactly one of uniform, log_uniform and choice."""

    uniform: tuple[float, float] | None = Field(
        default=None, description="Values between two numbers, all equally likely."
    )
    log_uniform: tuple[float, float] | None = Field(
        default=None, description="Values between two positive numbers, with an evenly distributed logarithm."
    )
    choice: Values | None = Field(default=None, description="One of these values.")
    integer: bool = Field(default=False, description="Round the value to a whole number.")

    @model_validator(mode="after")
    def _one_and_in_order(self) -> Distribution:
        given = [name for name in sorted(_DISTRIBUTIONS) if getattr(self, name) is not None]
        if len(given) != 1:
            said = " and ".join(given) or "none"
            raise Invalid(
                f"a random key has one of uniform, log_uniform and choice; this one has {said}",
                hint="uniform = [0.0, 1.0], and none of the others",
            )
        span = self.uniform or self.log_uniform
        if span and span[0] >= span[1]:
            raise Invalid(
                f"the lower bound comes first: {span[0]} is not below {span[1]}",
                key=(given[0],),
                write=sorted({*span, span[0] + 1})[:2],
            )
        if self.log_uniform and self.log_uniform[0] <= 0:
            raise Invalid(
                "the logarithm needs bounds above 0",
                key=("log_uniform",),
                write=(1e-5, max(span[1], 1e-3)) if span else None,
            )
        if self.integer and self.choice:
            raise Invalid(
                "choice takes its values as they are: only uniform and log_uniform are rounded",
                key=("integer",),
                write=False,
            )
        return self


class Random(Model):
    """Randomly drawn points. The same seed draws the same points; a key's draws do not depend on the other keys."""

    count: int = Field(ge=1, le=100_000, description="Number of draws.")
    seed: int = Field(default=0, ge=0, description="Seed of the draws.")
    keys: Annotated[dict[Key, Distribution], BeforeValidator(_flat)] = Field(
        min_length=1, description="Key -> distribution of its values."
    )


class Halving(Model):
    """Early stop of bad points: asynchronous successive halving (Li et al., MLSys 2020), the basis of Hyperband.

    After `first` steps, and after each `factor` times as many, a point continues if its metric is among the best 1/`factor` of the
    points that have come as far.
    """

    first: int = Field(ge=1, description="Steps until a point is judged for the first time.")
    factor: int = Field(
        default=3,
        ge=2,
        le=10,
        description="At each judgement, a point continues if it is among the best 1/factor of the points. The next "
        "judgement comes after factor times as many steps.",
    )


class Search(Model):
    """Points whose values are chosen when they start, from the results of earlier points."""

    count: int = Field(ge=1, le=10_000, description="Number of points.")
    seed: int = Field(default=0, ge=0, description="Seed of the draws.")
    startup: int = Field(
        default=10,
        ge=1,
        description="Number of points at the start that are spread evenly, without the use of results.",
    )
    keys: Annotated[dict[Key, Distribution], BeforeValidator(_flat)] = Field(
        min_length=1, description="Key -> distribution of its values."
    )
    objectives: dict[Annotated[str, METRIC], Literal["min", "max"]] = Field(
        default={}, description="Several metrics, each with its goal, instead of the sweep's `metric`."
    )
    stop: Halving | None = Field(default=None, description="Early stop of bad points; default: none.")

    @model_validator(mode="after")
    def _known_in_time(self) -> Search:
        for key in self.keys:
            if not key.startswith(("args.", "env.")):
                raise Invalid(
                    "a search chooses values after Slurm has given the nodes, so it can vary only options of the program and "
                    "environment variables",
                    key=("keys", key),
                    hint="args.--lr or env.NAME in [sweep.search.keys]; [sweep.grid] for other keys",
                )
        if len(self.objectives) == 1:
            name, goal = next(iter(self.objectives.items()))
            raise Invalid(
                "for one objective, use the keys metric and goal of [sweep] instead",
                key=("objectives",),
                hint=f'[sweep]\n       metric = "{name}"\n       goal = "{goal}"',
            )
        if self.stop and self.objectives:
            raise Invalid(
                "points with several objectives cannot be ranked while they run", key=("stop",), hint="remove it"
            )
        return self


class Sweep(Model):
    """The points of a job. They are the product of `grid`, `zip`, `points` and `random`, without those that do not meet `when`.
    Or a `search` chooses them.
    """

    grid: Lists = Field(default={}, description="Keys with lists of values. Every combination is a point.")
    zip: Lists = Field(
        default={},
        description="Keys with lists of the same length, side by side: the n-th values of all lists together are a point.",
    )
    points: dict[Name, Assigned] = Field(default={}, description="Points by name, each with values for several keys.")
    random: Random | None = Field(default=None, description="Points with randomly drawn values.")
    search: Search | None = Field(
        default=None, description="Points whose values are chosen from the results of earlier points."
    )
    set: Assigned = Field(
        default={}, description="Keys that every point gets. Their values are usually expressions of other keys."
    )
    when: tuple[str, ...] = Field(
        default=(), description="Conditions that a point must meet, such as 'lr < 0.1 or optimizer == \"sgd\"'."
    )
    parallel: int | None = Field(
        default=None, ge=1, description="Maximum number of points of one array that run at the same time."
    )
    max_nodes: int | None = Field(
        default=None, ge=1, description="Maximum number of nodes that the points of one array use at the same time."
    )
    metric: Annotated[str, METRIC] | None = Field(
        default=None, description="The metric by which `kit results` sorts, and which a search improves."
    )
    goal: Goal | None = Field(
        default=None,
        description="min: a small metric is better. max: a large one is better. Default: what the metric's name says, such as "
        "min for `test_loss` and max for `accuracy`; a name that does not say it needs a goal.",
    )

    @field_validator("zip")
    @classmethod
    def _one_length(cls, lists: dict[str, tuple[Value, ...]]) -> dict[str, tuple[Value, ...]]:
        lengths = {key: len(values) for key, values in lists.items()}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{key} has {count}" for key, count in lengths.items())
            shortest = min(lists.items(), key=lambda one: len(one[1]))
            raise Invalid(
                f"the lists of [sweep.zip] must have the same length: {said}",
                hint=f"add {max(lengths.values()) - len(shortest[1])} to {shortest[0]}",
            )
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
                twice.append(f"{key} is in {' and in '.join(holding)}")
        if twice:
            raise Invalid(f"a key may be set in one place only: {'; '.join(twice)}", hint="remove one of them")
        if not (self.grid or self.zip or self.points or self.random or self.search):
            raise Invalid(
                "the sweep has no points: give one of grid, zip, points, random and search",
                hint='grid."args.--lr" = [0.1, 0.01]',
            )
        return self

    @model_validator(mode="after")
    def _a_search_is_alone(self) -> Sweep:
        if self.search is None:
            return self
        for name in ("grid", "zip", "points", "random", "set", "when"):
            if getattr(self, name):
                raise Invalid(
                    f"a search chooses all points, so it cannot be combined with {name}",
                    key=(name,),
                    hint="remove one of them",
                )
        if self.metric is None and not self.search.objectives:
            raise Invalid(
                "a search needs the name of the metric that it should improve", key=("metric",), write="test_loss"
            )
        return self

    @model_validator(mode="after")
    def _not_too_many(self) -> Sweep:
        count = self.combinations
        if count > MOST_COMBINATIONS:
            several = [f"{key} has {len(values)}" for key, values in self.grid.items() if len(values) > 1]
            listed = ", ".join(several[:_LISTED]) + (
                f" and {len(several) - _LISTED} keys more" if len(several) > _LISTED else ""
            )
            raise Invalid(
                f"the sweep has {_number(count)} combinations; at most {MOST_COMBINATIONS:,} can be submitted"
                + (f": {listed}" if listed else ""),
                key=("grid",) if self.grid else (),
                hint="remove values, or draw some of the combinations: [sweep.random] with count = 100",
            )
        return self

    @property
    def combinations(self) -> int:
        """The number of combinations of values, before `when` leaves some out."""
        rows = max(map(len, self.zip.values()), default=1)
        return (
            max(1, len(self.points))
            * rows
            * math.prod(map(len, self.grid.values()))
            * (self.draws.count if self.draws else 1)
        )

    @model_validator(mode="after")
    def _a_goal_is_known(self) -> Sweep:
        if self.metric is not None and self.goal is None and goal_of(self.metric) is None:
            raise Invalid(
                f"the name {shown(self.metric)} does not say whether a small or a large value is better",
                key=("goal",),
                allowed="min, max",
                hint='goal = "max" if more is better, or goal = "min" if less is better',
            )
        return self

    @property
    def best_is(self) -> Goal:
        """The goal of the metric: the given one, or the one that its name says."""
        return self.goal or goal_of(self.metric or "") or "min"

    @property
    def draws(self) -> Random | None:
        """The random draws at submit. For a search, these are a point's values if nothing can be asked on its node."""
        if self.search is None:
            return self.random
        return Random(count=self.search.count, seed=self.search.seed, keys=self.search.keys)

    @property
    def objectives(self) -> dict[str, Literal["min", "max"]]:
        """Metric -> goal of a search; empty without one."""
        if self.search is None:
            return {}
        return self.search.objectives or {str(self.metric): self.best_is}
