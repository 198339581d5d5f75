"""Words of the kit: phrases that readers had to read twice are refused, and a module's docstring begins with a verb or a noun."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from pathlib import Path

import pytest

from tests.support import REPO

FOLDERS = (
    "kit", "launchers", "templates", "docs", "examples", "containers", "clusters", "mounts", "tables", "scripts", "benchmarks",
)  # fmt: skip
ENDINGS = {".py", ".sh", ".toml", ".j2", ".md", ".html"}
# Each with what to write instead.
REFUSED = {
    r"\bbe had\b": "exist, be used, be found",
    r"\bst(?:ands?|ood) in\b(?! (?:for|the|a|its|their|several|two|front|`|\[|\w+s? of|`?requirements|it\b))": "hold",
    r"\b(?:says?|said|saying) so\b": "reports it, warns",
    r"\b(?:is|are|was|were) none of\b": "is not, does not belong to",
    r"\bone a node\b": "one on each node",
    r"\b(?:goes|go|going|went) on\b": "continue",
    r"\bwithout a word\b": "silently",
    r"\bthe whole of it\b": "all",
    r"\bhas it that\b": "says",
    r"\bso many (?:of|seconds|milliseconds|steps|points|jobs|files|runs)\b": "this many, the number of",
    r"\b(?:hears?|heard) of\b": "notices, sees",
    r"--\w[\w-]* goes? with\b": "works only together with",
}
# `What`, `Who`, … begin a clause, and the reader waits for the verb.
CLAUSES = {"What", "Who", "Whose", "Where", "Whether", "Which", "How", "When", "Why", "That"}


@functools.cache
def texts() -> list[Path]:
    found = [REPO / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    for folder in FOLDERS:
        found += [path for path in (REPO / folder).rglob("*") if path.suffix in ENDINGS and path.is_file()]
    return found


@functools.cache
def sentences(path: Path) -> list[str]:
    """Lines of a file, each joined with the next: a phrase may be broken over two."""
    return joined(path.read_text("utf-8"))


def joined(text: str) -> list[str]:
    lines = [re.sub(r"^\s*(?:#|\"{3})?\s*", "", line).rstrip() for line in text.splitlines()]
    return [f"{one} {two}" for one, two in itertools.pairwise([*lines, ""])]


@functools.cache
def docstrings(path: Path) -> list[tuple[int, str]]:
    """Each docstring of a Python file, with the line of its module, class or function."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((getattr(node, "lineno", 1), ast.get_docstring(node) or ""))
    return found


@pytest.mark.parametrize("phrase", REFUSED)
def test_no_text_has_a_phrase_that_is_read_twice(phrase: str) -> None:
    found = [
        f"{path.relative_to(REPO)}:{number + 1}: {line[:100]}"
        for path in texts()
        for number, line in enumerate(sentences(path))
        if re.search(phrase, line, re.IGNORECASE)
    ]
    assert found == [], f"write: {REFUSED[phrase]}"


def test_no_docstring_of_a_test_has_such_a_phrase() -> None:
    """In tests/ only docstrings: their messages and comments quote what programs print."""
    found = [
        f"{path.relative_to(REPO)}:{number}: {line[:100]}"
        for path in sorted((REPO / "tests").rglob("*.py"))
        for number, text in docstrings(path)
        for line in joined(text)
        for phrase in REFUSED
        if re.search(phrase, line, re.IGNORECASE)
    ]
    assert found == []


def test_a_refused_phrase_is_found_over_two_lines(tmp_path: Path) -> None:
    page = tmp_path / "a.py"
    page.write_text("# The run goes\n# on.\n")
    assert re.search(r"\bgoes on\b", sentences(page)[0])


def modules() -> list[Path]:
    folders = ("kit", "launchers", "templates", "scripts", "benchmarks", "tests")
    return [path for folder in folders for path in sorted((REPO / folder).rglob("*.py"))]


def scripts() -> list[Path]:
    folders = ("launchers", "templates", "scripts", "benchmarks", "tests")
    return [path for folder in folders for path in sorted((REPO / folder).rglob("*.sh*")) if path.is_file()]


def test_a_script_begins_with_a_verb_or_a_noun() -> None:
    """Its first comment, below the shebang line."""
    wrong = []
    for path in scripts():
        comments = [line[2:] for line in path.read_text(encoding="utf-8").splitlines()[:3] if line.startswith("# ")]
        comments = [one for one in comments if not one.startswith("shellcheck ")]
        if comments and comments[0].split()[0].strip("`,.:") in CLAUSES:
            wrong.append(f"{path.relative_to(REPO)}: {comments[0]}")
    assert wrong == []


def test_a_module_begins_with_a_verb_or_a_noun() -> None:
    wrong = []
    for path in modules():
        text = docstrings(path)[0][1]
        if text and text.split()[0].strip("`,.:") in CLAUSES:
            wrong.append(f"{path.relative_to(REPO)}: {text.splitlines()[0]}")
    assert wrong == []
