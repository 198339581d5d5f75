"""Turns pydantic's errors into the kit's: FILE: KEY: PROBLEM, and a line that works."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import time
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kit.errors import ConfigError, Fault, nearest
from kit.schema.declared_keys import Declared, Location, locate, names_at, tables_with
from kit.schema.wrong_value_messages import Invalid, shown

COMMAND_LINE = "--set"

# pydantic's error for a value of a wrong type -> the type that the key accepts.
_TAKES = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
}
_LIMITS = {
    "greater_than_equal": ("ge", "is too small: {} is the least", 0),
    "greater_than": ("gt", "is too small: it has to be above {}", 1),
    "less_than_equal": ("le", "is too large: {} is the most", 0),
    "less_than": ("lt", "is too large: it has to be below {}", -1),
}


def config_error(
    error: ValidationError, model: type[BaseModel], file_of: Callable[[Location], str], *, table: object
) -> ConfigError:
    """All faults of `error` as one ConfigError. file_of: returns the file (or option) that contains a key. table: what was read."""
    places: dict[tuple[Location, bool], list[tuple[Declared, ErrorDetails]]] = {}
    for detail in error.errors():
        declared = locate(model, detail["loc"])
        places.setdefault((declared.keys, declared.of_key), []).append((declared, detail))
    faults = []
    for (keys, _), found in places.items():
        # A union reports an error for every branch. A branch that matched more of the value explains more than one of another type.
        deeper = any(len(other) > len(keys) and other[: len(keys)] == keys for other, _ in places)
        if not (deeper and all(detail["type"] in _TAKES for _, detail in found)):
            faults.append(_fault(found, model, file_of, table))
    return ConfigError.of(*dict.fromkeys(faults))


def dotted(location: Sequence[str | int]) -> str:
    """`("mounts", 0, "source")` -> `mounts[0].source`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def toml(value: object) -> str:
    """A value as one line of TOML."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    import tomli_w

    return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()


def _fault(
    errors: Sequence[tuple[Declared, ErrorDetails]],
    model: type[BaseModel],
    file_of: Callable[[Location], str],
    table: object,
) -> Fault:
    """One fault from all of pydantic's errors for one place."""
    telling = [one for one in errors if one[1]["type"] not in {*_TAKES, "literal_error"}]
    declared, first = (telling or errors)[0]
    wrong = _of_one(declared, first, model) if telling else _of_type([one for _, one in errors], declared)
    location = (*declared.keys, *wrong.key)
    file = file_of(location)
    hint = wrong.hint
    if hint == "remove the line" and file == COMMAND_LINE:
        hint = f"drop it from {COMMAND_LINE}"
    if not hint and wrong.write is not None:
        hint = _line(declared, location, wrong, table, on_command_line=file == COMMAND_LINE)
    return Fault(file=file, key=dotted(location), problem=wrong.problem, allowed=wrong.allowed, hint=hint)


def _line(declared: Declared, location: Location, wrong: Invalid, table: object, *, on_command_line: bool) -> str:
    """The line to write: the key with a value that works; below its table's name if that is another table."""
    value = wrong.write
    if declared.of_key:
        return f"rename it, such as to {dotted((*location[:-1], str(value)))}"
    if isinstance(location[-1], int) and not wrong.at:
        value = _with_item(table, location, value)
    names = [part for part in wrong.at or location if isinstance(part, str)]
    if on_command_line:
        text = value if isinstance(value, str) else toml(value)
        return f"{COMMAND_LINE} {shlex.quote(f'{dotted(names)}={text}')}"
    line = f"{_key(names[-1])} = {toml(value)}"
    moved = wrong.at and wrong.at[:-1] != location[:-1] and len(wrong.at) > 1
    return f"[{dotted(names[:-1])}]\n       {line}" if moved else line


def _with_item(table: object, location: Location, item: object) -> list[object]:
    """The list at this place of a file with another item, and the items beside it as they are."""
    index = int(location[-1])
    for part in location[:-1]:
        # A key with dots, such as `args.--lr`, may stand there in its parts.
        found = (isinstance(table, Mapping) and part in table) or (isinstance(table, list) and isinstance(part, int))
        table = table[part] if found else None  # type: ignore[index]
    given = [*table] if isinstance(table, list | tuple) else []
    return [*given[:index], item, *given[index + 1 :]]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml(name)


def _of_one(declared: Declared, one: ErrorDetails, model: type[BaseModel]) -> Invalid:
    """The fault of a value that has the right type."""
    kind, got, context = one["type"], one["input"], one.get("ctx", {})
    if kind == "value_error":
        return context["error"] if isinstance(context["error"], Invalid) else Invalid(str(context["error"]))
    if kind == "extra_forbidden":
        return _unknown_key(declared.keys, got, model)
    if kind == "missing":
        return _missing(declared)
    if kind in _LIMITS:
        name, says, away = _LIMITS[kind]
        fitting = context[name] + away if declared.default is None else declared.default
        return Invalid(f"{shown(got)} {says.format(context[name])}", write=fitting)
    return _of_length(kind, got, context, declared)


def _of_length(kind: str, got: object, context: Mapping[str, Any], declared: Declared) -> Invalid:
    if kind == "too_long":
        most = context["max_length"]
        write = got[:most] if isinstance(got, list | tuple) else None
        return Invalid(f"the list is too long: {most} items are the most", write=write)
    if kind == "too_short" and isinstance(got, list | tuple):
        return Invalid("the list is empty", write=declared.default or _example_list(declared))
    if kind == "too_short":
        return Invalid("the table is empty", hint=f"add a key to [{dotted(declared.keys)}], or remove it")
    return Invalid(f"{shown(got)} is not a value of this key", hint="remove the line")


def _example_list(declared: Declared) -> list[object]:
    item = declared.item(0)
    choices = [choice for kind in item.branches() if get_origin(kind) is Literal for choice in get_args(kind)]
    return choices[:1] or ([item.form.example] if item.form else [1, 2])


def _missing(declared: Declared) -> Invalid:
    last = declared.keys[-1]
    if isinstance(last, int):
        return Invalid(
            f"the list is too short: item {last + 1} is missing", hint=f"add {toml(_example(declared, None))}"
        )
    example = _example(declared, None)
    hint = "" if example is not None else f"[{dotted(declared.keys)}]"
    return Invalid("nothing sets this key, and it is required", write=example, hint=hint)


def _of_type(errors: Sequence[ErrorDetails], declared: Declared) -> Invalid:
    """The fault of a value with a wrong type; it combines all branches of a union."""
    got = errors[0]["input"]
    takes = list(dict.fromkeys(_TAKES[one["type"]] for one in errors if one["type"] in _TAKES))
    if "a number" in takes and "a whole number" in takes:
        takes.remove("a whole number")
    choices = [c for one in errors if one["type"] == "literal_error" for c in _choices(str(one["ctx"]["expected"]))]
    if takes:
        wanted = " or ".join([*takes, *choices])
        problem = f"{shown(got)} is {_kind(got)}, and this key takes {wanted}"
        if isinstance(got, bool):
            problem = f"this key takes {wanted}, and not {shown(got)}"
        example = _example(declared, got)
        if isinstance(got, time) and ":" in str(example):
            # TOML has times of day; a limit is text of the same form.
            example = str(got)
        if example is not None:
            return Invalid(problem, write=example)
        return Invalid(problem, hint=f"[{dotted(declared.keys)}]" if "a table" in takes else "remove the line")
    said = [choice.strip("'") for choice in choices]
    near = nearest(str(got), said)
    problem = f"{shown(got)} is not one of the values of this key" + (f"; did you mean {near!r}?" if near else "")
    write = near or (declared.default if str(declared.default) in said else said[0])
    return Invalid(problem, allowed=", ".join(said), write=int(write) if str(write).isdigit() else write)


def _choices(expected: str) -> list[str]:
    """Split `'a', 'b' or 'c'` into its words."""
    return [choice.lower() if choice in {"True", "False"} else choice for choice in re.split(r", | or ", expected)]


def _kind(value: object) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, Mapping):
        return "a table"
    return "a list" if isinstance(value, list | tuple) else "a date or a time"


def _example(declared: Declared, got: object) -> object:
    """A value that the key accepts: similar to the given one, or the default, or one that fits its form or type."""
    origins = {get_origin(kind) or kind for kind in declared.branches()}
    if (near := _same_value(declared, got, origins)) is not None:
        return near
    if declared.default is not None and not isinstance(declared.default, BaseModel | dict | tuple):
        return declared.default
    if declared.form is not None:
        return declared.form.example
    if int in origins:
        number, least = re.search(r"[0-9]+", str(got)), declared.least
        return max(least, int(number[0])) if number else least
    return 1.0 if float in origins else True if bool in origins else None


def _same_value(declared: Declared, got: object, origins: set[Any]) -> object:
    """The given value in the type that the key accepts: text as a list, a number as text, the only item of a list."""
    if tuple in origins and isinstance(got, str):
        return shlex.split(got) if declared.keys[-1] in {"args", "command"} and _splits(got) else [got]
    if declared.keys == ("args",) and isinstance(got, Mapping) and got:
        return _as_words(got)
    if str not in origins:
        return None
    if isinstance(got, list) and len(got) == 1 and isinstance(got[0], str):
        return got[0]
    # Each program reads its own variables: most take this word, and the word is what the user wrote.
    if isinstance(got, bool) and declared.keys[:-1] == ("env",):
        return str(got).lower()
    number = isinstance(got, int | float) and not isinstance(got, bool)
    return str(got) if number and (declared.form is None or declared.form.holds(str(got))) else None


def _as_words(options: Mapping[str, object]) -> list[str]:
    """A table of options as the words of a command line: `{lr = 0.1, amp = true}` -> `--lr 0.1 --amp`."""
    words: list[str] = []
    for name, value in options.items():
        option = name if name.startswith("-") else f"--{name}"
        values = value if isinstance(value, list) else [] if value is True else [value]
        words += [] if value is False else [option, *(str(one) for one in values)]
    return words


def _splits(text: str) -> bool:
    try:
        return bool(shlex.split(text))
    except ValueError:
        return False


def _unknown_key(keys: Location, value: object, model: type[BaseModel]) -> Invalid:
    """An unknown key of a table: it may be misspelt, or belong to another table."""
    name, table = str(keys[-1]), keys[:-1]
    known = names_at(model, table)
    other = getattr(model, "OTHER_NAMES", {}).get(name.replace("-", "_"))
    near = nearest(name, known) or nearest(name.lower(), known)
    if other is not None:
        at = tuple(other.split("."))
        return _misplaced(at, _as_form(locate(model, at), value))
    if places := tables_with(model, name):
        return _misplaced((*filter(None, places[0].split(".")), name), value)
    where = f"[{dotted(table)}]" if table else "the top of this file"
    if near:
        return Invalid(f"{where} has no such key; did you mean {near!r}?", write=value, at=(*table, near))
    if table == ("sweep",) and isinstance(value, list):
        problem = f"{where} has no such key; an option of the program that varies is a list of [sweep.grid]"
        return Invalid(problem, hint=f"[sweep.grid]\n       args.--{name.lstrip('-')} = {toml(value)}")
    return Invalid(f"{where} has no such key", allowed=", ".join(known), hint="remove the line")


def _as_form(declared: Declared, value: object) -> object:
    """The value as the key's form has it, where it is clear what was meant: `64 GB` -> `64GB`."""
    form = declared.form
    if form is None or not isinstance(value, str) or form.holds(value):
        return value
    near = form.nearest(value)
    return near if near is not None and form.holds(near) else value


def _misplaced(at: Location, value: object) -> Invalid:
    *table, name = at
    if table:
        return Invalid(f"this key belongs to another table: it is {dotted(at)}", write=value, at=at)
    return Invalid(f"this key belongs to the top of the file, above the first [table]: {name}", write=value, at=at)
