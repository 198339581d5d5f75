"""Faults of many points: each is reported once, with the numbers of its points."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kit.errors import ConfigError, Fault
from kit.sweeps.points.expand import Point
from kit.sweeps.points.key_names import ranges
from kit.validation import COMMAND_LINE


def of_points(file: str) -> str:
    """The name of a job file's sweep in faults."""
    return f"{file} [sweep]"


def clash(key: str, file: str, where: str = COMMAND_LINE) -> Fault:
    """The fault of a swept key that the command line sets as well. where: the part of the command line."""
    hint = f"drop it from {where}, or from [sweep] in {file}"
    return Fault(file=where, key=key, problem="the sweep sets this key too", hint=hint)


class Gathered:
    """Collects the faults of all points."""

    def __init__(self) -> None:
        self._points: dict[Fault, list[Point]] = {}

    def add(self, point: Point, faults: Sequence[Fault]) -> None:
        """Add faults of one point."""
        for fault in faults:
            points = self._points.setdefault(fault, [])
            if points[-1:] != [point]:
                points.append(point)

    @contextlib.contextmanager
    def collect(self, point: Point) -> Iterator[None]:
        """Collect the ConfigError of a block. One without faults, such as for invalid TOML, is raised."""
        try:
            yield
        except ConfigError as error:
            if not error.faults:
                raise
            self.add(point, [_as_option(fault, point) for fault in error.faults])

    def raise_any(self) -> None:
        """Raise a ConfigError with all collected faults, if there are any."""
        if self._points:
            raise self.error()

    def error(self) -> ConfigError:
        """All collected faults as one error."""
        return ConfigError.of(*(_with_points(fault, points) for fault, points in self._points.items()))


def _as_option(fault: Fault, point: Point) -> Fault:
    """A swept key that no job has is meant as an option of the program: `lr` -> `args.--lr`."""
    if fault.key not in point.values or "." in fault.key or not fault.problem.endswith("has no such key"):
        return fault
    problem = "no key of the job has this name, and an option of the program begins with args.--"
    return replace(fault, problem=problem, allowed="", hint=f"write args.--{fault.key} in place of {fault.key}")


def _with_points(fault: Fault, points: Sequence[Point]) -> Fault:
    numbers = ranges([point.index for point in points])
    who = f"point {numbers} ({points[0].label})" if len(points) == 1 else f"points {numbers}"
    return replace(fault, file=f"{fault.file}: {who}")
