"""Faults of many points: each is reported once, with the numbers of its points."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kit.errors import ConfigError, Fault
from kit.sweeps.expand import Point
from kit.sweeps.key_names import ranges
from kit.validation import COMMAND_LINE


def of_points(file: str) -> str:
    """How a fault names the sweep of a job file."""
    return f"{file} [sweep]"


def clash(key: str, file: str) -> Fault:
    """A swept key that the command line sets as well."""
    hint = f"drop it from {COMMAND_LINE}, or from [sweep] in {file}"
    return Fault(file=COMMAND_LINE, key=key, problem="the sweep sets this key too", hint=hint)


class Gathered:
    """The faults of all points so far."""

    def __init__(self) -> None:
        self._points: dict[Fault, list[Point]] = {}

    def add(self, point: Point, faults: Sequence[Fault]) -> None:
        """Note faults of one point."""
        for fault in faults:
            points = self._points.setdefault(fault, [])
            if points[-1:] != [point]:
                points.append(point)

    @contextlib.contextmanager
    def of(self, point: Point) -> Iterator[None]:
        """A block whose ConfigError is noted; one without faults, such as TOML that cannot be read, is passed on."""
        try:
            yield
        except ConfigError as error:
            if not error.faults:
                raise
            self.add(point, error.faults)

    def raise_any(self) -> None:
        """ConfigError with all that was noted, if anything was."""
        if self._points:
            raise self.error()

    def error(self) -> ConfigError:
        """All that was noted as one error."""
        return ConfigError.of(*(_with_points(fault, points) for fault, points in self._points.items()))


def _with_points(fault: Fault, points: Sequence[Point]) -> Fault:
    numbers = ranges([point.index for point in points])
    who = f"point {numbers} ({points[0].label})" if len(points) == 1 else f"points {numbers}"
    return replace(fault, file=f"{fault.file}: {who}")
