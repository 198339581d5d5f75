"""Splits the words of a command into its options and the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def split(
    words: Sequence[str], *, short: Mapping[str, str], flags: Collection[str]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Options as (name without dashes, value), and the words from the first that is no option on.

    short: letter -> long name. flags: long names that take no value from the next word.
    """
    options: list[tuple[str, str]] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, is_set, value = word[2:].partition("=")
        elif word[1:2] in short:
            name, value = short[word[1]], word[2:].removeprefix("=")
            is_set = value if name not in flags else ""
        else:
            name, is_set, value = word[1:], "", ""
        if not is_set and name not in flags and rest and not rest[0].startswith("--"):
            value = rest.pop(0)
        options.append((name, value))
    return options, rest
