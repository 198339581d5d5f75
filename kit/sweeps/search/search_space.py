"""The keys of a search as a cube: each key has a side from 0 to 1, with its values spread evenly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kit.schema.sweep import Distribution, Value
from kit.sweeps.search.gaussian_process import Floats

# The sides of the first points: each key counts in another base (Halton, "On the Efficiency of Certain Quasi-Random Sequences",
# Numerische Mathematik 1960). For more keys than these the even spread would show a pattern.
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)
MOST_KEYS = len(_PRIMES)


@dataclass(frozen=True)
class Side:
    """One key. low, high: numbers, or their logarithms. A choice has one coordinate for each value."""

    how: Distribution
    low: float
    high: float

    @property
    def width(self) -> int:
        """The number of its coordinates for a model: one, or for a choice the number of its values."""
        return len(self.how.choice) if self.how.choice is not None else 1

    def place(self, value: Value) -> float:
        """The position of a value on its side, from 0 to 1."""
        if self.how.choice is not None:
            same = [n for n, one in enumerate(self.how.choice) if one == value and type(one) is type(value)]
            return (same[0] + 0.5) / len(self.how.choice)
        number = float(str(value))
        inside = math.log(number) if self.how.log_uniform else number
        return min(max((inside - self.low) / (self.high - self.low), 0.0), 1.0)

    def numbers(self, places: Floats) -> Floats:
        """The numbers of the key at these places, rounded for an integer key. For a choice, the indices of its values."""
        if self.how.choice is not None:
            numbers: Floats = np.minimum(np.floor(places * len(self.how.choice)), len(self.how.choice) - 1)
            return numbers
        inside = self.low + places * (self.high - self.low)
        found: Floats = np.exp(inside) if self.how.log_uniform else inside
        if self.how.integer:
            low, high = _bounds(self.how)
            found = np.clip(np.round(found), low, high)
        return found

    def value(self, place: float) -> Value:
        """The value at a place."""
        number = float(self.numbers(np.array([place]))[0])
        if self.how.choice is not None:
            chosen: Value = self.how.choice[int(number)]
            return chosen
        # Six digits, as in random draws: people can read and type them again.
        return int(number) if self.how.integer else float(f"{number:.6g}")

    def coordinates(self, places: Floats) -> Floats:
        """The coordinates for a model. Any two values of a choice have distance 1, like the two ends of a number's side."""
        numbers = self.numbers(places)
        if self.how.choice is not None:
            ones: Floats = np.eye(self.width)[numbers.astype(int)] * math.sqrt(0.5)
            return ones
        inside = np.log(numbers) if self.how.log_uniform else numbers
        return ((inside - self.low) / (self.high - self.low))[:, None]


@dataclass(frozen=True)
class Space:
    """All keys of a search, in their order. Places are arrays (points, keys), coordinates are arrays (points, coordinates of all
    keys)."""

    sides: tuple[Side, ...]
    keys: tuple[str, ...]

    @property
    def slices(self) -> list[slice]:
        """The slice of each key in the coordinates."""
        ends = np.cumsum([one.width for one in self.sides]).tolist()
        return [slice(end - one.width, end) for one, end in zip(self.sides, ends, strict=True)]

    def coordinates(self, places: Floats) -> Floats:
        """The coordinates of each point, for a model."""
        return np.hstack([side.coordinates(places[:, n]) for n, side in enumerate(self.sides)])

    def places(self, values: Mapping[str, Value]) -> Floats:
        """The place of a point, one number for each key, from its values."""
        return np.array([side.place(values[key]) for key, side in zip(self.keys, self.sides, strict=True)])

    def values(self, places: Sequence[float] | Floats) -> dict[str, Value]:
        """The values of a point, from its place."""
        return {key: side.value(float(at)) for key, side, at in zip(self.keys, self.sides, places, strict=True)}

    def near(self, places: Floats, by: float, rng: np.random.Generator) -> Floats:
        """For each of these points, a point near it. About half of its keys differ: a number slightly, a choice randomly."""
        moved = places + by * rng.normal(size=places.shape)
        for n, side in enumerate(self.sides):
            if side.how.choice is not None:
                moved[:, n] = rng.uniform(size=len(places))
        return np.clip(np.where(rng.uniform(size=places.shape) < 0.5, moved, places), 0.0, 1.0)

    def spread(self, index: int, seed: int) -> Floats:
        """Point `index` of a sequence that fills the cube evenly: the Halton sequence with permuted digits, then shifted."""
        rng = np.random.default_rng(seed)
        places = []
        for base in _PRIMES[: len(self.sides)]:
            digits = [0, *(1 + rng.permutation(base - 1)).tolist()]
            left, share, at = index + 1, 1.0, float(rng.uniform())
            while left:
                left, digit = divmod(left, base)
                share /= base
                at += share * digits[digit]
            places.append(at % 1.0)
        return np.array(places)


def make_space(keys: Mapping[str, Distribution]) -> Space:
    """The space of these keys."""
    return Space(tuple(_side(how) for how in keys.values()), tuple(keys))


def _side(how: Distribution) -> Side:
    if how.choice is not None:
        return Side(how, 0.0, 1.0)
    low, high = _bounds(how)
    if how.integer:
        # As much room for the first and the last number as for the others.
        low, high = low - 0.5, high + 0.5
    return Side(how, math.log(low), math.log(high)) if how.log_uniform else Side(how, low, high)


def _bounds(how: Distribution) -> tuple[float, float]:
    low, high = how.uniform or how.log_uniform or (0.0, 1.0)
    if not how.integer:
        return low, high
    first = max(round(low), 1) if how.log_uniform else round(low)
    return float(first), float(max(round(high), first))
