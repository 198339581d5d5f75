"""Expands a `[sweep]` table into its points: products, draws, expressions, conditions, duplicates."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kit.errors import ConfigError, Fault
from kit.schema.sweep import Distribution, Sweep, Value
from kit.sweeps.points.expression_scope import Scope
from kit.sweeps.points.expressions import ExpressionError, checked, evaluate
from kit.sweeps.points.key_names import short_names, shown
from kit.sweeps.points.table_lookup import Tables

OWN = "var."


class Values(Mapping[str, Value]):
    """The swept keys of a point with their values, immutable. Up to 100,000 points share one table of keys."""

    __slots__ = ("_places", "_values")

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._places, self._values = _places(tuple(values)), tuple(values.values())

    def __getitem__(self, key: str) -> Value:
        return self._values[self._places[key]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return repr(dict(self))


@lru_cache(maxsize=1024)
def _places(keys: tuple[str, ...]) -> dict[str, int]:
    return {key: place for place, key in enumerate(keys)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One setting of all swept keys. index: its number in the sweep. name: of the named point that it comes from; empty if none."""

    index: int
    name: str
    values: Mapping[str, Value]

    @property
    def label(self) -> str:
        """A label for people: `small lr=0.001 seed=1`."""
        short = short_names(self.values)
        words = [f"{short[key]}={shown(value)}" for key, value in self.values.items()]
        return " ".join([self.name, *words] if self.name else words)

    @property
    def identity(self) -> str:
        """A text that is equal for two points with the same job: every key except the sweep's own names."""
        return json.dumps({k: v for k, v in sorted(self.values.items()) if not k.startswith(OWN)})


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """The points of a sweep.

    duplicates: omitted points, each with the earlier one that makes the same job. refused: omitted by `when`.
    """

    points: tuple[Point, ...]
    duplicates: tuple[tuple[Point, Point], ...]
    refused: int


def expand(sweep: Sweep, *, base: Mapping[str, Any], tables: Tables, file: str) -> Expansion:
    """All points. ConfigError with every expression that cannot be evaluated.

    base: the job's keys, which expressions may name. file: the file that faults name.
    """
    faults: dict[tuple[str, str], Fault] = {}
    points: list[Point] = []
    duplicates: list[tuple[Point, Point]] = []
    seen: dict[bytes, int] = {}
    refused = 0
    for name, raw in _settings(sweep):
        try:
            values, wanted = _evaluate_point(raw, sweep.when, base, tables)
        except _NoValues as problem:
            for fault in problem.faults(file):
                faults[fault.key, fault.problem] = fault
            continue
        if not wanted:
            refused += 1
            continue
        point = Point(index=len(points), name=name, values=Values(values))
        # Keep hashes: the identities themselves would need more memory than the points.
        first = seen.setdefault(hashlib.sha256(point.identity.encode()).digest()[:16], point.index)
        if first == point.index:
            points.append(point)
        else:
            duplicates.append((point, points[first]))
    if faults:
        raise ConfigError.of(*faults.values())
    if not points:
        none = f"the conditions leave none of the {refused} points"
        raise ConfigError.of(Fault(file=file, key="sweep.when", problem=none, hint="loosen a condition, or remove it"))
    return Expansion(points=tuple(points), duplicates=tuple(duplicates), refused=refused)


def _settings(sweep: Sweep) -> Iterator[tuple[str, dict[str, Value]]]:
    """Every combination of values with the name of its named point. Expressions are not evaluated yet.

    The last key of the grid changes fastest.
    """
    named = list(sweep.points.items()) or [("", {})]
    rows = [dict(zip(sweep.zip, row, strict=True)) for row in zip(*sweep.zip.values(), strict=True)] or [{}]
    for (name, setting), row in itertools.product(named, rows):
        for cell in itertools.product(*sweep.grid.values()):
            for draw in draws(sweep):
                yield name, {**setting, **row, **dict(zip(sweep.grid, cell, strict=True)), **draw, **sweep.set}


def draws(sweep: Sweep) -> Iterable[dict[str, Value]]:
    """The draws; each call gives the same ones, and none are kept in memory."""
    if (drawn := sweep.draws) is None:
        return [{}]
    # Each key has its own random stream, so adding a key does not change the other keys' draws.
    streams = {key: random.Random(f"{drawn.seed} {key}") for key in drawn.keys}
    keys = drawn.keys.items()
    return ({key: _draw(how, streams[key]) for key, how in keys} for _ in range(drawn.count))


def _draw(how: Distribution, stream: random.Random) -> Value:
    if how.choice is not None:
        return how.choice[int(stream.random() * len(how.choice))]
    if how.log_uniform is not None:
        low, high = map(math.log, how.log_uniform)
        drawn = math.exp(low + (high - low) * stream.random())
    else:
        assert how.uniform is not None
        low, high = how.uniform
        drawn = low + (high - low) * stream.random()
    # Six digits distinguish any two draws, and a person can read and type them.
    return round(drawn) if how.integer else float(f"{drawn:.6g}")


_LONGEST = 200
_HINT = "docs/guides/sweeps.md lists what an expression may use"


class _NoValues(Exception):  # noqa: N818 - internal: carries a point's faults to the loop that gathers them
    """Expressions that cannot be evaluated: the key of each, its text, the reason."""

    def __init__(self, found: list[tuple[str, str, ExpressionError]]) -> None:
        super().__init__(found)
        self._found = found

    def faults(self, file: str) -> list[Fault]:
        return [
            Fault(file=file, key=key, problem=f"{_short(text)} has no value: {why}", hint=_HINT)
            for key, text, why in self._found
        ]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _evaluate_point(
    raw: Mapping[str, Value], when: tuple[str, ...], base: Mapping[str, Any], tables: Tables
) -> tuple[dict[str, Value], bool]:
    """The values of one point, with all expressions evaluated, and whether it meets the conditions."""
    scope = Scope(raw, base, tables)
    values: dict[str, Value] = {}
    without: list[tuple[str, str, ExpressionError]] = []
    for key, value in raw.items():
        try:
            values[key] = checked(scope.value(key))
        except ExpressionError as error:
            without.append((f"sweep: {key}", str(value), error))
    wanted = True
    for number, condition in enumerate(when):
        try:
            # A condition may depend on the ones before it, such as one that keeps a divisor from being 0.
            wanted = wanted and bool(evaluate(condition, scope.name, scope.lookup))
        except ExpressionError as error:
            without.append((f"sweep.when[{number}]", condition, error))
    if without:
        raise _NoValues(without)
    return values, wanted
