"""Changes between a good run and a bad one, in order: code, then keys of the job, image, nodes.

Code comes first, in the order of its history. So when a key changes, the commit that reads the key is already there.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from kit.comparison import keys
from kit.schema.schema_base import Model
from kit.schema.set_by import SetBy

Kind = Literal["code", "keys", "image", "nodes"]
KINDS: tuple[Kind, ...] = ("code", "keys", "image", "nodes")
# These keys belong to the changes of kind `nodes`.
_PLACEMENT = frozenset({"slurm.nodelist", "slurm.exclude"})
_OPTION = "args."


class Change(Model):
    """One change.

    name: for code, a commit (`SHA`, or `SHA^` to undo it), `tree:HASH`, or `programs` of the launcher; for a key, its name; for an
    image, `pip:PACKAGE` or the bad image's digest; for nodes, `OLD NEW`.
    """

    kind: Kind
    name: str
    text: str = Field(description="As in 'commit 3f2a1b9 (a shorter warm-up)'.")


def of_keys(
    good: Mapping[str, Any], bad: Mapping[str, Any], set_by: Sequence[Sequence[SetBy]], *, fixed: Iterable[str] = ()
) -> list[Change]:
    """A change for each key that differs. `args` gives a change for each option if both lists have every option only once.

    A key that no layer set in either run follows from other keys, so it is not a separate change, except for the drawn seed. fixed:
    keys that belong to another change.
    """
    left_out = {*fixed, *_PLACEMENT}
    changes = []
    for difference in keys.between(good, bad, *set_by):
        derived = difference.set_by_a == difference.set_by_b == keys.OWN and difference.key != "seed"
        if difference.key in left_out or derived:
            continue
        if difference.key == "args" and (options := _options_of(difference.a, difference.b)) is not None:
            changes += options
        else:
            changes.append(
                Change(
                    kind="keys",
                    name=difference.key,
                    text=f"the key {difference.key} ({_value(difference.a)} -> {_value(difference.b)})",
                )
            )
    return changes


def derived(good: Mapping[str, Any], bad: Mapping[str, Any], set_by: Sequence[Sequence[SetBy]]) -> list[str]:
    """The keys that differ only because other keys differ. Each state between the two runs computes them again."""
    return [
        one.key
        for one in keys.between(good, bad, *set_by)
        if one.set_by_a == one.set_by_b == keys.OWN and one.key != "seed"
    ]


def job_with(
    good: Mapping[str, Any], bad: Mapping[str, Any], names: Iterable[str], *, every: bool, without: Iterable[str] = ()
) -> dict[str, Any]:
    """The good run's job with some keys of the bad one. every: all changes of keys are included. without: keys to remove."""
    table: dict[str, Any] = json.loads(json.dumps(good))
    for key in without:
        _copy(table, {}, key.split("."))
    options = []
    for key in names:
        if key.startswith(_OPTION):
            options.append(key.removeprefix(_OPTION))
        else:
            _copy(table, bad, key.split("."))
    if options:
        words = bad["args"] if every else _with_options(good.get("args", []), bad.get("args", []), options)
        table["args"] = [*words]
    return table


def of_nodes(good: Sequence[str], bad: Sequence[str]) -> list[Change]:
    """One change for each node that only the good run had. Empty if the runs have different numbers of nodes."""
    if len(good) != len(bad):
        return []
    old, new = ([one for one in mine if one not in theirs] for mine, theirs in ((good, bad), (bad, good)))
    return [
        Change(kind="nodes", name=f"{x} {y}", text=f"node {y} instead of {x}") for x, y in zip(old, new, strict=True)
    ]


def nodes_with(good: Sequence[str], made: Iterable[str]) -> tuple[str, ...]:
    """The good run's nodes with some of them replaced."""
    swap = dict(name.split(" ", 1) for name in made)
    return tuple(swap.get(node, node) for node in good)


def _copy(table: dict[str, Any], bad: Mapping[str, Any], parts: Sequence[str]) -> None:
    """Set one key as in `bad`, or remove it if `bad` lacks it."""
    at: Any = bad
    for part in parts:
        at = at.get(part) if isinstance(at, Mapping) else None
    for part in parts[:-1]:
        table = table.setdefault(part, {})
    if at is None:
        table.pop(parts[-1], None)
    else:
        table[parts[-1]] = at


def _words_by_option(args: Sequence[str]) -> dict[str, list[str]] | None:
    """Option -> its words, in order. Words before the first option have the name ''. None if an option occurs twice."""
    words: dict[str, list[str]] = {"": []}
    name = ""
    for word in args:
        if word.startswith("--") and len(word) > 2:
            name = word.partition("=")[0]
            if name in words:
                return None
            words[name] = [word]
        else:
            words[name].append(word)
    return words


def _options_of(a: object, b: object) -> list[Change] | None:
    if not isinstance(a, list | None) or not isinstance(b, list | None):
        return None
    good, bad = _words_by_option(a or []), _words_by_option(b or [])
    if good is None or bad is None or good[""] != bad[""]:
        return None
    names = [name for name in dict.fromkeys([*good, *bad]) if good.get(name) != bad.get(name)]
    return [
        Change(
            kind="keys",
            name=f"{_OPTION}{name}",
            text=f"the option {name} ({_words(good.get(name))} -> {_words(bad.get(name))})",
        )
        for name in names
    ] or None


def _with_options(good: Sequence[str], bad: Sequence[str], names: Sequence[str]) -> list[str]:
    words, other = _words_by_option(good) or {}, _words_by_option(bad) or {}
    for name in names:
        if name in other:
            words[name] = other[name]
        else:
            words.pop(name, None)
    return [*itertools.chain.from_iterable(words.values())]


def _words(words: Sequence[str] | None) -> str:
    if words is None:
        return "not given"
    return " ".join([words[0].partition("=")[2], *words[1:]]).strip() or "given"


def _value(value: object) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
