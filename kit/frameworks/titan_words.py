"""Converts overrides in Hydra's form (`a.b=c`, with or without `--cfg_options` before them) into TorchTitan's arguments.

TorchTitan takes `--a.b=c`, so with a TOML configuration each override becomes such an option. Forks with Python configurations
take the overrides after `--cfg_options`, nested tables included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kit.config.layers import leaves
from kit.errors import Fault, nearest

CFG_OPTIONS = "--cfg_options"
_OVERRIDE = re.compile(r"([A-Za-z_][\w-]*(?:\.[\w-]+)+)=(.*)", re.DOTALL)
_TRUE, _FALSE = frozenset({"true", "1"}), frozenset({"false", "0"})
_NONE = frozenset({"none", "null", ""})
_PLACE = "--extra-args"


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of the program's options.

    names: all of them. switches: those that are true or false. kinds: option -> its annotation, where that is known.
    open: tables whose keys the program does not fix, such as an optimizer's arguments.
    """

    names: frozenset[str]
    switches: frozenset[str]
    kinds: Mapping[str, str]
    open: frozenset[str] = frozenset()

    def has(self, option: str) -> bool:
        """Whether the program has an option, or takes any key in its table."""
        return option in self.names or any(option.startswith(f"{table}.") for table in self.open)


def split(words: Sequence[str], switches: frozenset[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The options that are written as TorchTitan wants them, and the overrides: pairs of key and text.

    A word after an option that takes a value is that value, also if it looks like an override.
    """
    options, overrides = list[str](), list[tuple[str, str]]()
    takes = False
    for word in words:
        found = None if takes else _OVERRIDE.fullmatch(word)
        if found:
            overrides.append((found[1].replace("-", "_"), found[2]))
        elif word.replace("-", "_") != "__cfg_options":
            options.append(word)
        name = word.removeprefix("--").replace("-", "_")
        positive = re.sub(r"(^|\.)no_(?=[^.]*$)", r"\1", name)
        takes = word.startswith("--") and "=" not in word and not {name, positive} & switches and name != "cfg_options"
    return options, overrides


def stray(options: Sequence[str]) -> Iterator[Fault]:
    """Words before the first option, which no parser takes: `training.steps 5`."""
    if options and not options[0].startswith("-"):
        value = options[1] if len(options) > 1 and not options[1].startswith("-") else "VALUE"
        yield Fault(
            key=_PLACE,
            problem=f"{options[0]!r} is neither an option nor an override",
            hint=f'{_PLACE} "{options[0]}={value}"',
        )


def as_options(overrides: Sequence[tuple[str, str]], known: Known) -> list[str]:
    """Overrides as TorchTitan's own options: `--a.b=c`, `--a.b` and `--a.no_b` for switches, commas between the parts of a list."""
    words = []
    for key, text in overrides:
        if key in known.switches:
            section, _, name = key.rpartition(".")
            words.append(f"--{key}" if text.lower() in _TRUE else f"--{section}.no_{name}")
        else:
            parts = _list(text) if _is_list(key, text, known) else None
            words.append(f"--{key}={','.join(map(str, parts)) if parts is not None else text}")
    return words


def faults(overrides: Sequence[tuple[str, str]], known: Known, *, tables: bool, file: str) -> Iterator[Fault]:
    """Overrides that the program would drop or refuse: unknown keys, and values of another kind.

    tables: whether it takes tables as values. file: the configuration's name.
    """
    for key, text in overrides:
        if not known.has(key):
            near = nearest(key, known.names) or _same_last_name(key, known)
            problem = f"{key}: neither the program nor {file} has this key"
            question = f"; did you mean {near!r}?" if near else ""
            hint = f"{near}={text}" if near else f"write it into {file}, if the program has it"
            yield Fault(key=_PLACE, problem=problem + question, hint=hint)
        elif wrong := _wrong_kind(key, text, known, tables=tables):
            yield Fault(key=_PLACE, problem=f"{key}={text}: {wrong[0]}", hint=f"{key}={wrong[1]}")


def _same_last_name(key: str, known: Known) -> str | None:
    """The only option with the same name in another section."""
    found = [name for name in known.names if name.rpartition(".")[2] == key.rpartition(".")[2]]
    return found[0] if len(found) == 1 else None


def _wrong_kind(  # noqa: PLR0911 - one for each kind of value
    key: str, text: str, known: Known, *, tables: bool
) -> tuple[str, str] | None:
    """What is wrong with a value, and one that is right; None if nothing is."""
    kind = known.kinds.get(key, "")
    if key in known.switches:
        return None if text.lower() in _TRUE | _FALSE else ("the key is true or false", "true")
    if "None" in kind and text.lower() in _NONE:
        return None
    value = _literal(text)
    if not tables and (
        isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, list) for v in value))
    ):
        return "an option cannot hold a table: write it into the configuration file", "a,b"
    plain = kind.replace(" | None", "")
    if plain == "int" and not re.fullmatch(r"[+-]?\d+", text):
        return "the key takes an integer", "1"
    if plain in {"float", "float | int", "int | float"} and not _is_number(text):
        return "the key takes a number", "0.1"
    choices = re.fullmatch(r"Literal\[(.*)\]", plain)
    if choices and text not in (allowed := [one.strip(" '\"") for one in choices[1].split(",")]):
        return f"the key takes one of {', '.join(allowed)}", nearest(text, allowed) or allowed[0]
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_list(key: str, text: str, known: Known) -> bool:
    return known.kinds.get(key, "").lower().startswith("list") or (
        text[:1] in "[(" and text[-1:] in "])" and len(text) > 1
    )


def _literal(text: str) -> Any:
    """A value as TOML or Python write it; text that is neither stays text."""
    import ast

    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return text


def _list(text: str) -> list[Any]:
    """The parts of a list: `[a,b]`, `(a,b)`, `a,b` or `a,`."""
    inner = text[1:-1] if text[:1] in "[(" else text
    return [part.strip().strip("'\"") for part in inner.split(",") if part.strip()]


def of_python(table: Mapping[str, Any], options: Mapping[str, str], others: Sequence[str]) -> Known:
    """What is known of a fork that reads a Python configuration: its file's keys, and the options of its checkout.

    options: of the checkout, with annotations. others: options of TorchTitan's releases, if there is no checkout.
    """
    in_file = dict(leaves(table))
    given = {f"{section}.{key}" for section, inner in table.items() if isinstance(inner, dict) for key in inner}
    free = {key for key, kind in options.items() if "dict" in kind.lower()}
    free |= {
        f"{section}.{key}"
        for section, inner in table.items()
        if isinstance(inner, dict)
        for key, value in inner.items()
        if isinstance(value, dict)
    }
    kinds = {key: type(value).__name__ for key, value in in_file.items() if isinstance(value, bool)} | dict(options)
    switches = frozenset(key for key, kind in kinds.items() if kind == "bool")
    names = frozenset({*in_file, *given, *options, *(() if options else others)})
    return Known(names=names, switches=switches, kinds=kinds, open=frozenset(free))
