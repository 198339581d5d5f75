"""Merges layers of keys into one Job: `--set`, tables merged key by key, and the layer to which a fault belongs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from kit.config.toml_file import Table, check_values, too_deep
from kit.errors import ConfigError, Fault
from kit.schema.job import Job
from kit.schema.set_by import LayerKind, SetBy
from kit.schema.wrong_value_messages import shown as shown_value
from kit.validation import COMMAND_LINE, config_error, dotted

Layer = tuple[Mapping[str, Any], str]


def parse_overrides(overrides: Sequence[str]) -> Table:
    """`["a.b=1", "c=x"]` -> `{"a": {"b": 1}, "c": "x"}`."""
    table: Table = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise ConfigError.of(
                Fault(
                    file=COMMAND_LINE,
                    key=key,
                    problem=f"{shown_value(text)} is not written as KEY=VALUE",
                    hint=f"{COMMAND_LINE} resources.nodes=2",
                )
            )
        inner = table
        for part in parts[:-1]:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                problem = f"{part} is set to a value, and also used as a table"
                raise ConfigError.of(
                    Fault(file=COMMAND_LINE, key=key, problem=problem, hint=f"drop one {COMMAND_LINE}")
                )
        inner[parts[-1]] = _value(value)
    check_values(table, COMMAND_LINE)
    return table


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except RecursionError:
        raise too_deep(COMMAND_LINE) from None


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Table:
    """Tables merge key by key; any other value of `above` replaces that of `below`."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def merge_all(layers: Sequence[Layer]) -> Table:
    """All layers as one table, lowest first."""
    table: Table = {}
    for layer, _ in layers:
        table = merge(table, layer)
    return table


def leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Each value that is not a table, by its dotted key: `{"a": {"b": 1}}` has `a.b`. Empty tables have none."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def set_by(layers: Sequence[Layer], kinds: Sequence[tuple[LayerKind, str]]) -> tuple[SetBy, ...]:
    """The layers that decide keys, with their keys. kinds: kind and name of each layer."""
    decided = {key: place for place, (layer, _) in enumerate(layers) for key, _ in leaves(layer)}
    found: list[list[str]] = [[] for _ in layers]
    for key, _ in leaves(merge_all(layers)):
        found[decided[key]].append(key)
    return tuple(
        SetBy(kind=kind, name=name, keys=tuple(sorted(keys)))
        for (kind, name), keys in zip(kinds, found, strict=True)
        if keys
    )


def merge_and_validate(layers: Sequence[Layer], overrides: Sequence[str], job_file: str) -> Job:
    """The Job of all layers. ConfigError names for each fault the layer that has its key."""
    table = merge_all(layers)

    def file_of(location: tuple[str | int, ...]) -> str:
        keys = [str(part) for part in location]
        held = [(_depth(layer, keys), file) for layer, file in layers]
        deepest = max(depth for depth, _ in held)
        return [file for depth, file in held if depth == deepest][-1] if deepest else job_file

    try:
        return Job.model_validate(table)
    except ValidationError as error:
        literal = _as_text(table, error, overrides)
        if literal is None:
            raise config_error(error, Job, file_of, table=table) from None
    try:
        return Job.model_validate(literal)
    except ValidationError as error:
        raise config_error(error, Job, file_of, table=literal) from None


def _as_text(table: Table, error: ValidationError, overrides: Sequence[str]) -> Table | None:
    """For `--set resources.time=30`: if text is required and TOML gave a number, use the text as it was typed."""
    wanted = {dotted(e["loc"]) for e in error.errors() if e["type"] == "string_type"}
    typed = {key.strip(): value for key, _, value in (o.partition("=") for o in overrides) if key.strip() in wanted}
    if not typed:
        return None
    for key, value in typed.items():
        nested: Any = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        table = merge(table, nested)
    return table


def _depth(layer: Any, keys: Sequence[str]) -> int:
    """The number of nested keys that a layer has. An empty table has none."""
    for depth, key in enumerate(keys):
        if isinstance(layer, list) and key.isdigit():
            return len(keys)
        if not isinstance(layer, Mapping) or key not in layer or layer[key] == {}:
            return depth
        layer = layer[key]
    return len(keys)
