"""Writes options for Megatron-LM's parser: megatron-options.toml lists them by release.

The list comes from the parsers themselves (tests/training/test_megatron_lm.py compares the two). The parsers exit on an unknown
option, so the kit refuses such a key; the user's own options go into `args`. If the release is not known, an option passes if any
known release has it, and is written as the newest of those releases expects it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kit.errors import Fault, nearest
from kit.schema.wrong_value_messages import shown
from kit.validation import toml

FILE = Path(__file__).with_name("megatron-options.toml")
# An unknown option counts as a misspelling of a known one from this similarity on (difflib's ratio, 0 to 1).
_MISSPELT_CUTOFF = 0.88

# The parser's name of a value -> the option that sets it, where the two differ.
_BY_OTHER_NAME = {"fp8": "fp8_format", "fp4": "fp4_format"}
# Keys of the job that are taken for Megatron's when they stand below [megatron].
_OF_THE_JOB = frozenset({"args", "command", "env", "image", "inherit", "mounts", "script", "setup"})


@cache
def _table() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return found


@cache
def known(release: str | None) -> dict[str, Any]:
    """Option names by how they are written (value, several, bare, both). off: option that is on by default -> the option that
    disables it.

    release: one of the releases in launchers/megatron-lm/launcher.toml; None: any.
    """
    newest: dict[str, tuple[str, str]] = {}
    for kind in ("value", "several", "bare", "both"):
        for name, has in _table()[kind].items():
            if release is None or release in has.split():
                newest[name] = max(newest.get(name, ("", "")), (has.split()[-1], kind))
    kinds = {kind: {name for name, one in newest.items() if one[1] == kind} for kind in ("value", "several", "bare")}
    both = {name for name, one in newest.items() if one[1] == "both"}
    # A `both` switch has a second name, `no_…`.
    bare = kinds["bare"] | {f"no_{name}" for name in both}
    return {**kinds, "bare": bare, "both": both, "off": {k: v for k, v in _table()["off"].items() if v in bare}}


def words(options: Mapping[str, Any], release: str | None = None) -> list[str]:
    """The options as command-line words: `--num-layers 24 --no-bias-gelu-fusion …`."""
    return [word for key, value in options.items() for word in _words(key, value, known(release))]


def _words(key: str, value: Any, kinds: Mapping[str, Any]) -> list[str]:
    name = f"--{key.replace('_', '-')}"
    if value is False and key in kinds["off"]:
        return [f"--{kinds['off'][key].replace('_', '-')}"]
    if value is False:
        return [f"--no-{name[2:]}"] if key in kinds["both"] else []
    if value is True:
        return [] if key in kinds["off"] and key not in kinds["bare"] else [name]
    if isinstance(value, list | tuple):
        items = [str(item) for item in value]
        return [name, ",".join(items)] if key in kinds["value"] else [name, *items]
    return [name, str(value)]


def faults(options: Mapping[str, Any], release: str | None = None) -> Iterator[Fault]:
    """Misspelt option names, and values that an option cannot take."""
    kinds = known(release)
    names = {*kinds["value"], *kinds["several"], *kinds["bare"], *kinds["both"], *kinds["off"]}
    for key, value in options.items():
        where, valued = f"megatron.{key}", key in kinds["value"] | kinds["several"]
        if key not in names:
            yield _unknown(key, value, names, release)
        elif isinstance(value, bool) and valued:
            problem = f"the option takes a value, and not {shown(value)}"
            yield Fault(key=where, problem=problem, hint="write its value, or remove the line")
        elif not isinstance(value, bool) and not valued:
            problem = f"the option is a switch: it takes true or false, and not {shown(value)}"
            yield Fault(key=where, problem=problem, hint=f"{key} = {toml(_switched(value))}")


def _switched(value: object) -> bool:
    """Whether a value that is not true or false means on."""
    return str(value).lower() not in {"0", "0.0", "false", "no", "off", "none", "", "[]"}


def _without_no(key: str) -> str:
    return "_".join(word for word in key.split("_") if word != "no")


def _opposite(key: str, near: str, value: object, program: str) -> Fault:
    """A switch of which this release has only the other side: what it turns on is the default."""
    problem = f"{program}: it is the default there, and {near!r} turns it off"
    hint = f"{near} = true" if value is False and "no" in near.split("_") else "remove the line"
    return Fault(key=f"megatron.{key}", problem=problem, hint=hint)


def _as_arguments(key: str, value: object) -> str:
    """The option as arguments of the program, for an option that only the user's own program knows."""
    if value is False:
        return "remove the line"
    items = [] if value is True else [str(one) for one in (value if isinstance(value, list | tuple) else [value])]
    option = f"--{key.replace('_', '-')}"
    return f"args = {toml([option, *items])} at the top of the file"


def _unknown(key: str, value: Any, names: set[str], release: str | None) -> Fault:
    if key in _OF_THE_JOB:
        problem = f"this key belongs to the top of the file, above the first [table]: {key}"
        return Fault(key=f"megatron.{key}", problem=problem, hint=f"{key} = {toml(value)}")
    near = _BY_OTHER_NAME.get(key) or nearest(key, names, cutoff=_MISSPELT_CUTOFF)
    has = next(
        (has for kind in ("value", "several", "bare", "both") for k, has in _table()[kind].items() if k == key), ""
    )
    program = (
        f"Megatron-LM {release} has no such option" if release else "no known release of Megatron-LM has such an option"
    )
    meant = f"; {', '.join(has.split())} {'have' if ' ' in has else 'has'} it" if has else ""
    meant += f"; did you mean {near!r}?" if near else "" if has else ". One of your own goes into args"
    bare = _without_no(key)
    if near and _without_no(near) == bare:
        return _opposite(key, near, value, program)
    hint = f"{near} = {toml(value)}" if near else _as_arguments(key, value)
    return Fault(key=f"megatron.{key}", problem=f"{program}{meant}", hint=hint)
