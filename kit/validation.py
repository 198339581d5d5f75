"""Turns pydantic's errors into the kit's: file, key, what was given, what is allowed, what to try."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import ErrorDetails

from kit.errors import ConfigError, Fault, did_you_mean

_SHOWN = 80


def config_error(
    error: ValidationError, model: type[BaseModel], file_of: Callable[[tuple[str | int, ...]], str]
) -> ConfigError:
    """All faults of `error` as one ConfigError. `file_of` says which file (or option) a key came from."""
    faults = dict.fromkeys(_fault(one, model, file_of) for one in _distinct(error.errors(), model))
    return ConfigError.of(*faults)


def dotted(location: Sequence[str | int]) -> str:
    """`("mounts", 0, "source")` -> `mounts[0].source`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "(the whole file)"


def fields_at(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """The keys that `model` allows in the table at `location`; empty where any key is allowed."""
    table = _model_at(model, location)
    return sorted(table.model_fields) if table is not None and not issubclass(table, RootModel) else []


def _fault(one: ErrorDetails, model: type[BaseModel], file_of: Callable[[tuple[str | int, ...]], str]) -> Fault:
    location = _clean(one["loc"], model)
    kind, got, context = one["type"], _shown(one["input"]), one.get("ctx", {})
    allowed, hint = _reworded(one["msg"], kind, context), ""
    if kind == "extra_forbidden":
        known = fields_at(model, location[:-1])
        got, allowed = "an unknown key", ", ".join(known)
        hint = did_you_mean(str(location[-1]), known, cutoff=0.5) or "remove it"
    elif kind == "missing":
        got, allowed = "nothing", "a value: the key is required"
    elif kind == "literal_error":
        hint = did_you_mean(str(one["input"]), re.findall(r"'([^']*)'", str(context["expected"])))
    elif kind == "value_error":
        allowed = str(context["error"])
    return Fault(file=file_of(location), key=dotted(location), got=got, allowed=allowed, hint=hint)


def _reworded(message: str, kind: str, context: Mapping[str, Any]) -> str:
    if kind == "string_pattern_mismatch":
        return f"text of the form {context['pattern']}"
    if kind == "literal_error":
        return str(context["expected"])
    return message.removeprefix("Input should be ").removeprefix("Value error, ")


def _distinct(errors: Sequence[ErrorDetails], model: type[BaseModel]) -> list[ErrorDetails]:
    """A union reports every branch. Keep, per key, the branches that got furthest into the value, and of several at one place those
    that say more than that the value is of another type."""
    depth: dict[tuple[str | int, ...], int] = {}
    told: set[tuple[str | int, ...]] = set()
    for one in errors:
        root = one["loc"][:2]
        depth[root] = max(depth.get(root, 0), len(one["loc"]))
        if one["type"] not in _WRONG_TYPE:
            told.add(_clean(one["loc"], model))
    furthest = [one for one in errors if len(one["loc"]) == depth[one["loc"][:2]] or len(one["loc"]) <= 2]
    return [one for one in furthest if one["type"] not in _WRONG_TYPE or _clean(one["loc"], model) not in told]


def _clean(location: tuple[str | int, ...], model: type[BaseModel]) -> tuple[str | int, ...]:
    """Drop the parts that pydantic adds for union branches, such as 'Mount' or 'constrained-str'."""
    keys = [p for p in location if isinstance(p, int) or not (p[:1].isupper() or "[" in p or p in _BRANCHES)]
    return tuple(keys)


_WRONG_TYPE = {"model_type", "model_attributes_type", "dict_type", "string_type"}
_BRANCHES = {"str", "int", "float", "bool", "constrained-str", "function-after", "[key]"}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _model_at(model: type[BaseModel], location: Sequence[str | int]) -> type[BaseModel] | None:
    current: Any = model
    for part in location:
        current = _step(current, part)
        if current is None:
            return None
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _step(annotation: Any, part: str | int) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, RootModel):
        annotation = annotation.model_fields["root"].annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(part))
        return _unwrap(field.annotation) if field else None
    arguments = [_unwrap(a) for a in get_args(annotation)]
    if get_origin(annotation) is dict:
        return arguments[1]
    return next((a for a in arguments if isinstance(a, type) and issubclass(a, BaseModel)), None)


def _unwrap(annotation: Any) -> Any:
    """The model inside Optional, Union or Annotated, if there is one."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        inner = [_unwrap(a) for a in get_args(annotation) if a is not type(None)]
        return next((a for a in inner if isinstance(a, type) and issubclass(a, BaseModel)), inner[0])
    if hasattr(annotation, "__metadata__"):
        return _unwrap(get_args(annotation)[0])
    return annotation
