"""Writes options for Megatron-LM's parser: megatron-options.toml lists those of release core_v0.16.1.

That file is what the parser itself says of them (tests/training/test_megatron_lm.py compares). It ends on an option that it does
not know, so such a key is refused; what another release has can be given in `args`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kit.errors import Fault, nearest
from kit.spec.wrong_value_messages import shown
from kit.validation import toml

FILE = Path(__file__).with_name("megatron-options.toml")
# How alike an unknown name and a known one are when the first is taken for a misspelt second, of difflib's 0 to 1.
_ALIKE = 0.88


@cache
def known() -> dict[str, Any]:
    """value, several, bare, both: names by how they are written; off: what is on by default -> the option that switches it off."""
    kinds: dict[str, Any] = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {kind: names if kind == "off" else frozenset(names) for kind, names in kinds.items()}


def words(options: Mapping[str, Any]) -> list[str]:
    """`--num-layers 24 --no-bias-gelu-fusion …`."""
    return [word for key, value in options.items() for word in _words(key, value)]


def _words(key: str, value: Any) -> list[str]:
    kinds = known()
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


def faults(options: Mapping[str, Any]) -> Iterator[Fault]:
    """Names that are misspelt, values that the option cannot take."""
    kinds = known()
    names = {*kinds["value"], *kinds["several"], *kinds["bare"], *kinds["both"], *kinds["off"]}
    for key, value in options.items():
        where, valued = f"megatron.{key}", key in kinds["value"] | kinds["several"]
        if key not in names:
            near = nearest(key, names, cutoff=_ALIKE)
            meant = f"; did you mean {near!r}?" if near else ". One of another release, or of your own, goes into args"
            option = f"--{key.replace('_', '-')}"
            hint = f"{near} = {toml(value)}" if near else f'args = ["{option}", "{value}"]'
            yield Fault(key=where, problem=f"Megatron-LM core_v0.16.1 has no such option{meant}", hint=hint)
        elif isinstance(value, bool) and valued:
            yield Fault(key=where, problem=f"the option takes a value, and not {shown(value)}", hint=f"{key} = 1")
        elif not isinstance(value, bool) and not valued:
            problem = f"the option is a switch: it takes true or false, and not {shown(value)}"
            yield Fault(key=where, problem=problem, hint=f"{key} = true")
