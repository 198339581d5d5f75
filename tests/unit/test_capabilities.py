"""tests/capabilities.md has every row, once, and what it names is there."""

from __future__ import annotations

import ast
import re
from functools import cache

from kit.cli.groups import PLACES
from tests.rows import rows
from tests.support import REPO

ROWS = {"S0": 40, "S1": 27, "S2": 40, "S3": 21, "S4": 35, "L": 15, "H": 19, "W": 2, "D": 6, "T": 14, "C": 12}
TEXT = (REPO / "tests" / "capabilities.md").read_text(encoding="utf-8")
TOP = "clusters|containers|docs|examples|kit|launchers|mounts|tables|templates|tests"
# NAME stands for any name: clusters/NAME.toml.
PATH = re.compile(rf"(?<![\w/.<])(?:{TOP})/[\w./-]*\w(?:::\w+)?")


def lines() -> list[list[str]]:
    """The cells of each line of the tables."""
    rows = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if re.match(r"\| (S\d|[LHDTWC]\.)", line)]
    assert all(len(row) == 4 for row in rows), [row for row in rows if len(row) != 4]
    return rows


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((REPO / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def named(text: str) -> list[str]:
    return [word for word in PATH.findall(text) if "NAME" not in word]


def there(word: str) -> bool:
    path, _, test = word.partition("::")
    return (REPO / path).exists() and (not test or (test.startswith("test_") and test in functions_of(path)))


def test_every_number_once() -> None:
    found = [row[0] for row in lines() if "." in row[0]]
    assert found == [f"{block}.{n}" for block, last in ROWS.items() for n in range(1, last + 1)]


def test_every_command_and_launcher_has_a_row() -> None:
    launchers = {path.parent.name for path in REPO.glob("launchers/*/launcher.toml")}
    missing = {name for name in {*PLACES, *launchers} if not re.search(rf"\b{name}\b", TEXT)}
    assert missing == set()


def test_every_row_is_shown_or_says_what_is_missing() -> None:
    for row in lines():
        assert named(row[3]) or re.search(r"not yet: \w", row[3]), row
    mistakes = [row for row in lines() if "." not in row[0]]
    assert {row[0] for row in mistakes} == {block for block in ROWS if block.startswith("S")}, (
        "the mistakes of each block"
    )


def test_what_it_names_is_there() -> None:
    words = named(TEXT)
    assert len(words) > sum(ROWS.values())
    assert [word for word in words if not there(word)] == []


@cache
def marked_smoke(test: str) -> bool:
    """Whether CI runs a case of a test of tests/training: it runs those marked smoke."""
    path, _, name = test.partition("::")
    tree = ast.parse((REPO / path).read_text(encoding="utf-8"))
    marks = [
        ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)
    ]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    marks += [ast.unparse(mark) for node in functions for mark in node.decorator_list]
    return any("mark.smoke" in mark for mark in marks)


def test_ci_runs_a_training_test_of_each_row_that_needs_one() -> None:
    """CI builds no large image and runs the training tests marked smoke: a row that only others show fails it."""
    named = {row: tests for row, tests in rows(TEXT).items() if any("tests/training/" in test for test in tests)}
    assert len(named) > 20
    unseen = {
        row: tests
        for row, tests in named.items()
        if not any(marked_smoke(test) if "tests/training/" in test else "tests/unit/" in test for test in tests)
    }
    assert unseen == {}


def test_a_name_that_is_not_there_is_noticed() -> None:
    """The check above would pass if it saw nothing."""
    assert named("`tests/unit/test_x.py::test_y`, docs/nothing.md") == [
        "tests/unit/test_x.py::test_y",
        "docs/nothing.md",
    ]
    assert not there("docs/nothing.md")
    assert not there("tests/unit/test_capabilities.py::test_nothing")
    assert not there("tests/unit/test_capabilities.py::there")
    assert there("tests/unit/test_capabilities.py::test_every_number_once")
