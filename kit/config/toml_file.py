"""One TOML file: its text, its table, its model."""

from __future__ import annotations

import math
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from kit.errors import ConfigError, Fault
from kit.files import untrusted_files
from kit.validation import config_error

M = TypeVar("M", bound=BaseModel)
Table = dict[str, Any]
# Larger than any TOML file of a person or of the kit.
_MOST_BYTES = 16 << 20


def load_toml(path: Path) -> Table:
    """A TOML file as a table; ConfigError if it is missing, unreadable or not valid TOML."""
    text = _text_of(path)
    try:
        table = tomllib.loads(text)
    except ValueError as error:  # of tomllib, or of Python, which converts no integer of more than 4,300 digits
        if is_batch_text(text):
            problem = f"{shown(path)}: this is a batch script, and a TOML file is expected"
            raise ConfigError(problem, hint=f"kit migrate {shlex.quote(str(path))}") from None
        raise ConfigError(f"{shown(path)}: not valid TOML: {error}", hint=_hint_for(path, text, str(error))) from None
    except RecursionError:
        raise too_deep(shown(path)) from None
    check_values(table, shown(path))
    return table


def _hint_for(path: Path, text: str, error: str) -> str:
    """What to do about a file that is not TOML: it may be another kind of file, or have a slip that is common."""
    if path.suffix == ".py":
        return f"kit run {shlex.quote(str(path))}"
    line = _line_of(text, error)
    if "overwrite a value" in error or "declare" in error:
        return f"{line!r} is there twice: remove one" if line else "a key or table is there twice: remove one"
    if found := re.fullmatch(r"([A-Za-z0-9_-]+) *: *([^{}\[\]\"']+)", line):
        return f'YAML is not read; in TOML: {found[1]} = "{found[2].strip()}"'
    if found := re.fullmatch(r"([A-Za-z0-9_.-]+) *= *([A-Za-z][^\"'\[\]{}#]*)", line):
        value = found[2].strip()
        return f"{found[1]} = {value.lower()}" if value in {"True", "False"} else f'{found[1]} = "{value}"'
    return 'text is written in "quotes", a table\'s name in [brackets]'


def _line_of(text: str, error: str) -> str:
    """The line of the file that tomllib's message names; empty if it names none."""
    found = re.search(r"at line (\d+)", error)
    lines = text.split("\n")
    return lines[int(found[1]) - 1].strip() if found and int(found[1]) <= len(lines) else ""


def is_batch_text(text: str) -> bool:
    """Whether a file's text begins as a script does, or has options for sbatch."""
    return text.startswith("#!") or has_sbatch_options(text)


def has_sbatch_options(text: str) -> bool:
    """Whether a line of a text has options for sbatch."""
    return any(line.startswith("#SBATCH ") for line in text.splitlines())


def _text_of(path: Path) -> str:
    """The text of a regular file. A FIFO would wait for a writer, and a device may never end."""
    try:
        if path.exists() and not path.is_file():
            what = "a folder" if path.is_dir() else "not a regular file"
            raise ConfigError(
                f"{shown(path)}: this is {what}, and a TOML file is expected", hint="name the file itself"
            )
        # Editors on Windows may write a byte order mark first.
        return untrusted_files.read_bytes(path, most=_MOST_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        hint = "run 'kit init' for a first job file, or name another one"
        if "=" in path.name:
            hint = f"--set {shlex.quote(path.name)} for a key of the job, -- {shlex.quote(f'--{path.name}')} for an argument"
        raise ConfigError(f"{shown(path)}: no such file", hint=hint) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{shown(path)}: the file is not UTF-8 text", hint="save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{shown(path)}: cannot be read: {reason(error)}", hint=f"ls -l {shown(path)}") from None


# No table of the kit has more than a dozen levels. Much deeper ones would hit Python's recursion limit.
_DEEPEST = 100
# As in the TOML specification, and in what reads the files that the kit writes.
_LARGEST = 1 << 63
_UNUSABLE, _NUMBERS = "not a usable number", "finite numbers of at most 64 bits"


def _nested(table: Table) -> int:
    """The depth of nested tables and lists, counted only up to the limit."""
    level: list[dict[str, Any] | list[Any]] = [table]
    depth = 0
    while level and depth <= _DEEPEST:
        depth += 1
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
    return depth


def check_values(table: Table, file: str) -> None:
    """Raise ConfigError for tables nested more than 100 levels deep, and for a date, an integer over 64 bits, inf or nan."""
    if _nested(table) > _DEEPEST:
        raise too_deep(file)
    wrong = [fault for key, value in _leaves(table) if (fault := _fault_of(key, value))]
    if wrong:
        raise ConfigError.of(*wrong, file=file)


def _leaves(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Each value in a table that is no table or list, with its key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, key)
    else:
        yield key, value


def _fault_of(key: str, value: object) -> Fault | None:
    """The fault of a value that no JSON file and no program's option can hold."""
    if isinstance(value, date):
        return Fault(
            key=key,
            problem="no key takes a date",
            got=str(value),
            allowed="numbers, true, false, text",
            hint=f'{key} = "{value}"',
        )
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        return Fault(key=key, problem=_UNUSABLE, got=_short(value), allowed=_NUMBERS, hint=f"{key} = 1")
    if isinstance(value, float) and not math.isfinite(value):
        return Fault(key=key, problem=_UNUSABLE, got=_short(value), allowed=_NUMBERS, hint=f"{key} = 1.0")
    return None


def _short(number: float) -> str:
    text = str(number)
    return text if len(text) <= 30 else f"{text[:20]}… ({len(text)} digits)"


def too_deep(file: str) -> ConfigError:
    """The error for a table that is nested too deep."""
    return ConfigError(
        f"{file}: nested too deep: more than {_DEEPEST} tables and lists inside each other", hint="kit schema job"
    )


def reason(error: OSError | UnicodeDecodeError) -> str:
    """The reason why a file could not be read, in words."""
    return "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else (error.strerror or str(error)).lower()


def load_model(path: Path, model: type[M]) -> M:
    """A TOML file as a model; ConfigError with all faults at once. An unchanged file is not read again."""
    try:
        found = path.stat()
    except OSError:
        return validate(load_toml(path), model, file=shown(path))
    loaded = _load_version(path, model, (found.st_mtime_ns, found.st_size, found.st_ino))
    assert isinstance(loaded, model)
    return loaded


@lru_cache(maxsize=256)
def _load_version(path: Path, model: type[BaseModel], version: tuple[int, ...]) -> BaseModel:
    return validate(load_toml(path), model, file=shown(path))


def validate(table: Mapping[str, Any], model: type[M], *, file: str) -> M:
    """A table as a model; ConfigError with all faults, each of which names `file`."""
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        raise config_error(error, model, lambda _: file, table=table) from None


def shown(path: Path) -> str:
    """A path for people: relative to the working folder if it is inside."""
    try:
        # Not Path.resolve, which fails for a link to itself.
        return str(Path(os.path.realpath(path)).relative_to(Path.cwd()))
    except ValueError:
        return str(path)
