"""Commands of printed advice: each line of the kit in a message has a command and options that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from kit.cli import app
from kit.cli.groups import GROUPS
from tests.support import REPO

# A line ends where the sentence goes on.
_LINE = re.compile(r"(?<![\w./-])kit ([a-z][a-z-]+)((?:(?!, |[;:()`'\n]|\.$| -- ).)*)")
NAMES = frozenset(name for group in GROUPS.values() for name in group)


def text_of(node: ast.expr) -> str:
    """The text of a string, with X for each value that it is made of."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(one) if isinstance(one, ast.Constant) else "X" for one in node.values)
    return ""


@cache
def advice(path: Path) -> list[tuple[int, str]]:
    """All strings of a module that are not a docstring and have a command of the kit, each with its line."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    inner = {id(one) for node in nodes if isinstance(node, ast.JoinedStr) for one in node.values}
    inner |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    strings = [node for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in inner]
    return [(node.lineno, text) for node in strings if "kit " in (text := text_of(node))]


@cache
def whole() -> Any:
    """Typer makes a command of its own at each call."""
    return typer.main.get_command(app)


def command(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the first words name, and the words after it."""
    found: Any = whole()
    while words and hasattr(found, "list_commands") and words[0] in found.list_commands(None):
        found, words = found.get_command(None, words[0]), words[1:]
    return found, words


def wrong(line: str) -> str:
    """What is wrong with a command line of the kit; empty if nothing is."""
    found, rest = command(line.split()[1:])
    flags = {flag for one in found.params for flag in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
    return ", ".join(
        word for word in rest if re.match(r"--?[a-z]", word) and word.rstrip(",.").split("=")[0] not in flags
    )


def lines(text: str) -> Iterator[str]:
    """The command lines of a text. Words of prose after `kit` are none."""
    for found in _LINE.finditer(text):
        if found[1] in NAMES:
            yield f"kit {found[1]} {found[2]}"


@pytest.mark.parametrize("room", sorted(one.name for one in (REPO / "kit").iterdir() if one.name != "__pycache__"))
def test_advised_options_exist(room: str) -> None:
    place = REPO / "kit" / room
    bad = []
    for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
        for number, text in advice(path):
            bad += [
                f"{path.relative_to(REPO)}:{number}: {line}: {said}" for line in lines(text) if (said := wrong(line))
            ]
    assert bad == []


@pytest.mark.parametrize(
    ("said", "option"),
    [
        ("kit status X, once Slurm answers", ""),
        ("try kit submit job.toml --folow", "--folow"),
        ("kit cluster up --node 2; then more", "--node"),
        ("kit submit -- --lr 0.05", ""),
        ("the kit waits --long", ""),
    ],
)
def test_a_wrong_option_is_seen(said: str, option: str) -> None:
    assert ", ".join(filter(None, map(wrong, lines(said)))) == option


def test_many_lines_are_looked_at() -> None:
    files = (REPO / "kit").rglob("*.py")
    assert sum(1 for path in files for _, text in advice(path) for _ in lines(text)) > 250
