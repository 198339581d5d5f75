"""Points that share a plan: their jobs differ only in values that no rule reads, so one plan is valid for all of them.

A sweep over 100,000 learning rates is planned once, and each point again when its run folder is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kit import frameworks
from kit.config import Resolved
from kit.errors import ConfigError, Fault
from kit.planning.plan import Plan
from kit.planning.sbatch_header import header
from kit.schema.sweep import Value
from kit.schema.world_size_text import world_size
from kit.sweeps.points.expand import OWN, Point
from kit.sweeps.points.program_options import text

# Header options that differ between the points of an array: their names, and the paths inside their run folders.
OWN_NAME = "--job-name="
RUN_DIR = "<run folder>"

_ARGS, _SEED = "args.", "seed"
# A value that the rules of the job file treat as plain: not an option, variable or path, and without control characters.
_PLAIN = re.compile(r"-?[0-9][A-Za-z0-9.+-]{0,63}|[A-Za-z][A-Za-z0-9._]{0,63}", re.ASCII)

# The key of a kind: equal for two points if the plan of each is valid for the other.
Key = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The properties that its points share.

    header: sbatch's options without a point's own. held: number of nodes, including spares.
    """

    header: tuple[str, ...]
    nodes: int
    held: int
    ranks: str
    qos: str | None
    image: str
    warnings: tuple[Fault, ...]


def kind_of(plan: Plan) -> Kind:
    """The kind of a planned point."""
    options = header(plan.text_of("batch.sh"))
    return Kind(
        header=tuple(o.replace(str(plan.run_dir), RUN_DIR) for o in options if not o.startswith(OWN_NAME)),
        nodes=plan.allocation.nodes,
        held=plan.decisions.every_node,
        ranks=world_size(plan.world_sizes),
        qos=plan.job.qos,
        image=plan.decisions.pin.image,
        warnings=plan.warnings,
    )


class Kinds:
    """Finds the kind of each point. An unknown kind is made once.

    resolve: returns a point's job, ConfigError if there is none. make: returns the kind of such a job, ConfigError if it cannot be
    planned.
    """

    def __init__(self, resolve: Callable[[Point], Resolved], make: Callable[[Point, Resolved], Kind]) -> None:
        self._resolve, self._make = resolve, make
        self._read: dict[Key, frozenset[str] | None] = {}
        self._known: dict[Key, Kind | tuple[Fault, ...]] = {}
        self._same: dict[Kind, Kind] = {}

    def find_kind(self, point: Point) -> Kind:
        """The kind of a point. ConfigError with the faults of its kind."""
        rest = _rest(point)
        if rest not in self._read:
            return self._first(point, rest)
        key = _key(point, rest, self._read[rest])
        if key is None:
            return self._made(point, self._resolve(point))
        if key not in self._known:
            self._known[key] = self._tried(point)
        found = self._known[key]
        if isinstance(found, Kind):
            return found
        raise ConfigError.of(*found)

    def free(self, point: Point) -> tuple[str, ...]:
        """The keys of the point that no rule reads, with plain values: another plain value changes nothing but the text."""
        read = self._read.get(_rest(point))
        keys = []
        for key, value in point.values.items():
            if key.startswith(OWN):
                free = _is_plain(value)
            elif key == _SEED:
                free = _is_seed(value)
            else:
                option = key.removeprefix(_ARGS)
                # The manifest records the digest of prepared data that --data names.
                free = option not in {key, "--data", *(read or ())} and read is not None and _is_plain(value)
            if free:
                keys.append(key)
        return tuple(keys)

    def _first(self, point: Point, rest: Key) -> Kind:
        """The first point with these keys shows which of its options are read; if it has no job, all may be."""
        try:
            resolved = self._resolve(point)
        except ConfigError:
            self._read[rest] = None
            raise
        self._read[rest] = frameworks.options_read(resolved)
        key = _key(point, rest, self._read[rest])
        made = self._made(point, resolved)
        if key is not None:
            self._known[key] = made
        return made

    def _tried(self, point: Point) -> Kind | tuple[Fault, ...]:
        try:
            return self._made(point, self._resolve(point))
        except ConfigError as error:
            if not error.faults:
                raise
            return tuple(error.faults)

    def _made(self, point: Point, resolved: Resolved) -> Kind:
        # Thousands of equal kinds share one object in memory.
        made = self._make(point, resolved)
        return self._same.setdefault(made, made)


def _rest(point: Point) -> Key:
    """Everything that the point sets except options of its program and the sweep's own names."""
    return tuple(
        (key, value)
        for key, value in point.values.items()
        if not key.startswith((_ARGS, OWN)) and (key != _SEED or not _is_seed(value))
    )


def _is_seed(value: Value) -> bool:
    """Whether a value is a valid seed; the bounds are in kit/schema/job.py. A seed only appears as a number in worker.sh."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def _key(point: Point, rest: Key, read: frozenset[str] | None) -> Key | None:
    """The key with the values of options that are read, and only the names of the others. read None: each value may be read."""
    if read is None:
        return None
    options: Sequence[tuple[str, Any]] = [
        (key, None if key.removeprefix(_ARGS) not in read and _is_plain(value) else (type(value), value))
        for key, value in point.values.items()
        if key.startswith(_ARGS)
    ]
    return (*rest, *options)


def _is_plain(value: Value) -> bool:
    if isinstance(value, bool | tuple):
        return False
    return _PLAIN.fullmatch(text(value)) is not None
