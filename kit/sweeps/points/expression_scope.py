"""The names that an expression of one point can use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kit.schema.sweep import Value
from kit.sweeps.points.expressions import ExpressionError, UnknownName, evaluate
from kit.sweeps.points.key_names import identifier, short_names
from kit.sweeps.points.program_options import option_names, read_option
from kit.sweeps.points.table_lookup import Tables

_LOOKUP = "lookup:"


@lru_cache(maxsize=1024)
def _names(keys: tuple[str, ...]) -> dict[str, str]:
    """The names of each key in expressions: its short name and its full name."""
    short = short_names(keys)
    return {short[key]: key for key in keys} | {identifier(key): key for key in keys}


class Scope:
    """The point's keys, which hide the job's. A value that is an expression is evaluated when it is first used."""

    def __init__(self, raw: Mapping[str, Value], base: Mapping[str, Any], tables: Tables) -> None:
        self._raw, self._base, self._tables = raw, base, tables
        self._keys = _names(tuple(raw))
        self._known: dict[str, Any] = {}
        self._open: list[str] = []

    def value(self, key: str) -> Any:
        """The value of a swept key. ExpressionError if it has none, or depends on itself."""
        if key in self._known:
            return self._known[key]
        if key in self._open:
            raise ExpressionError(f"values that need each other: {' -> '.join([*self._open, key])}")
        self._open.append(key)
        try:
            self._known[key] = self._evaluated(self._raw[key])
        finally:
            self._open.pop()
        return self._known[key]

    def name(self, name: str) -> Any:
        """The value of a name in an expression; a Mapping for a prefix of a dotted name. UnknownName if there is none."""
        if name in self._keys:
            return self.value(self._keys[name])
        if any(known.startswith(f"{name}.") for known in self._keys):
            return {}
        head, _, option = name.partition(".")
        if head == "args":
            return self._of_args(option, name)
        found: Any = self._base
        for part in name.split("."):
            if not isinstance(found, Mapping) or part not in found:
                raise self._unknown(name)
            found = found[part]
        return found

    def lookup(self, reference: str) -> Value:
        """The value of `lookup:<reference>` for this point."""
        return self._tables.find(reference, self.name)

    def _of_args(self, option: str, name: str) -> Any:
        if not option:
            return {}
        found = read_option(self._base.get("args", []), option)
        if found is None:
            raise self._unknown(name)
        return found

    def _unknown(self, name: str) -> UnknownName:
        """An error that suggests similar names: keys of the point, or options of the job."""
        return UnknownName(name, sorted({*self._keys, *option_names(self._base.get("args", []))}))

    def _evaluated(self, value: Value) -> Any:
        if isinstance(value, str) and value.startswith("="):
            return evaluate(value[1:], self.name, self.lookup)
        if isinstance(value, str) and value.startswith(_LOOKUP):
            return self.lookup(value.removeprefix(_LOOKUP).strip())
        return value
