"""Names of a sweep's keys in expressions, tables and plots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kit.schema.sweep import Value


def identifier(key: str) -> str:
    """`args.--batch-size` -> `args.batch_size`: a name that is valid in an expression."""
    head, dot, option = key.partition(".")
    return f"{head}.{option.lstrip('-').replace('-', '_')}" if dot and head == "args" else key


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Key -> the last part of its identifier, or the whole identifier if two keys would have the same last part."""
    keys = list(keys)
    last = {key: identifier(key).rpartition(".")[2] for key in keys}
    shared = {name for name in last.values() if list(last.values()).count(name) > 1}
    return {key: identifier(key) if name in shared else name for key, name in last.items()}


def shown(value: Value) -> str:
    """A value in a table: floats with at most six digits, as in 0.001 or 3e-05."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        return " ".join(shown(one) for one in value)
    return str(value)


def ranges(numbers: Sequence[int]) -> str:
    """`[0, 1, 2, 5]` -> `0-2,5`, Slurm's form for the tasks of an array."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
