"""Each promise of docs/concepts/trust.md names tests that exist, and that CI runs on a machine without Pyxis."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support import REPO

PAGE = (REPO / "docs/concepts/trust.md").read_text(encoding="utf-8")
# Marks of tests that CI leaves out, or that skip without Pyxis: see pyproject.toml.
LEFT_OUT = frozenset({"skip", "pyxis", "slow", "faults", "xfail"})
# A promise that cannot be held names the test of what is said instead; of root there is nothing to say.
NOT_HELD = "root of the node or cluster"


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"(?m)^\| (.*) \|$", section)
    return [line.split(" | ") for line in lines[1:]]


PROMISES = [(row[0], row[-1]) for title in ("Who may do what", "Listeners") for row in rows(title)]


@cache
def left_out(path: str) -> dict[str, set[str]]:
    """The tests of a file, each with its marks that CI leaves out, those of the module with them."""
    tree = ast.parse((REPO / path).read_text(encoding="utf-8"))
    module = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(getattr(one, "id", "") == "pytestmark" for one in node.targets)
    ]
    return {
        node.name: marks_in([*node.decorator_list, *module]) for node in tree.body if isinstance(node, ast.FunctionDef)
    }


def marks_in(nodes: list[ast.expr]) -> set[str]:
    """Marks of the whole test. A mark of one of its parameters leaves the others."""
    found = set()
    for node in nodes:
        one = node.func if isinstance(node, ast.Call) else node
        found |= {one.attr} if isinstance(one, ast.Attribute) else set()
        found |= marks_in(node.elts) if isinstance(node, ast.List) else set()
    return found & LEFT_OUT


def test_there_are_promises() -> None:
    assert len(rows("Who may do what")) >= 25
    assert len(rows("Listeners")) >= 9


@pytest.mark.parametrize(("who", "tests"), PROMISES)
def test_a_promise_names_tests_that_ci_runs(who: str, tests: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
    assert named or who == NOT_HELD, tests
    for path, name in named:
        known = left_out(path)
        assert name in known and name.startswith("test_"), f"{path} has no {name}"
        assert known[name] == set(), f"{path}::{name} is left out: {known[name]}"


def test_the_guard_sees_marks() -> None:
    tree = ast.parse(
        "pytestmark = [pytest.mark.cluster, pytest.mark.slow]\n@pytest.mark.skip(reason='x')\ndef test_x(): ...\n"
    )
    mark, function = tree.body
    assert isinstance(mark, ast.Assign) and isinstance(function, ast.FunctionDef)
    assert marks_in([mark.value]) == {"slow"}
    assert marks_in(function.decorator_list) == {"skip"}
