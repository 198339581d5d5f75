"""Options of the programs of `[rl]` and `[sft]`: the sub-tables, and the shared values that they do not set."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from kit.frameworks.role_layout import lookup
from kit.schema.rl_and_sft import Sft
from kit.schema.role_programs import Programs

Options = dict[str, Any]


def all_options(table: Sft, programs: Programs, values: Options, job_keys: frozenset[str]) -> dict[str, Options]:
    """Each role's options: its sub-table, and the shared values that the sub-table does not set.

    job_keys: keys of [checkpoint] that the job sets. The other defaults do not create a table: with one, the program would save.
    """
    tables = table.tables()
    options = {role: copy.deepcopy(tables.get(role, {})) for role in programs.roles}
    late = [key for key in values if key.startswith("checkpoint.") and key not in job_keys]
    for key in (key for key in values if key not in late):
        _flow(options, programs, key, values[key])
    _imply(options, programs)
    for key in late:
        _flow(options, programs, key, values[key], into_tables_only=True)
    for name, program in programs.roles.items():
        if program.based_on:
            options[name] = merged(options[name], merged(program.sets, options[program.based_on]))
    return options


def merged(over: Mapping[str, Any], under: Mapping[str, Any]) -> Options:
    """Two tables as one. Values of `over` override those of `under`."""
    found = copy.deepcopy(dict(under))
    for key, value in over.items():
        below = found.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        found[key] = merged(value, below) if both and isinstance(below, Mapping) else copy.deepcopy(value)
    return found


def holds(options: Mapping[str, Any], what: str) -> bool:
    """Whether a role sets this option: `role.option`, or `role.option = value`."""
    option, _, value = what.partition(" = ")
    found = lookup(options, option)
    return found is not None and (not value or str(found).lower() == value.lower())


def _flow(
    options: dict[str, Options], programs: Programs, key: str, value: Any, *, into_tables_only: bool = False
) -> None:
    for target in programs.keys.get(key, ()):
        role, _, path = target.partition(".")
        there = not into_tables_only or lookup(options, target.rpartition(".")[0]) is not None
        if role in options and there:
            named = f"{value}-{role}" if key == "wandb.name" and not programs.one_wandb_run else value
            _fill(options[role], path.split("."), copy.deepcopy(named))


def _imply(options: dict[str, Options], programs: Programs) -> None:
    """Set the options that follow from others. A number takes the type of its default: 64 becomes 64.0 if the default is 32.0."""
    for what, implied in programs.implied.items():
        if not holds(options, what):
            continue
        for target, default in implied.items():
            role, _, path = target.partition(".")
            value = _spelt(default, options) if isinstance(default, str) else default
            _fill(options[role], path.split("."), copy.deepcopy(value))
            given = lookup(options, target)
            if isinstance(default, float) and type(given) is int:
                _put(options[role], path.split("."), float(given))
    for source, targets in programs.follows.items():
        value = lookup(options, source)
        for target in targets if value is not None else ():
            role, _, path = target.partition(".")
            _fill(options[role], path.split("."), copy.deepcopy(value))


def _spelt(text: str, options: Mapping[str, Any]) -> str:
    """The text, with each {role.option} replaced by that option's value."""
    return re.sub(r"\{([a-z_.]+)\}", lambda named: str(lookup(options, named[1])), text)


def _fill(options: Options, path: list[str], value: Any) -> None:
    """Set an option that is not set. Do nothing if the path runs through a value: the sub-table's own check reports that."""
    for part in path[:-1]:
        options = options.setdefault(part, {})
        if not isinstance(options, dict):
            return
    options.setdefault(path[-1], value)


def _put(options: Options, path: list[str], value: Any) -> None:
    for part in path[:-1]:
        options = options[part]
    options[path[-1]] = value
