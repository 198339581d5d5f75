"""Words of the kit: phrases that readers had to read twice are refused, and a module's docstring begins with a verb or a noun."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support import REPO

FOLDERS = ("kit", "launchers", "templates", "docs")
ENDINGS = {".py", ".sh", ".toml", ".j2", ".md", ".html"}
# Each with what to write instead.
REFUSED = {
    r"\bbe had\b": "exist, be used, be found",
    r"\bst(?:ands?|ood) in\b(?! (?:for|the|a|its|their|several|two|front|`|\[|\w+s? of|`?requirements|it\b))": "hold",
    r"\b(?:says?|said|saying) so\b": "reports it, warns",
    r"\b(?:is|are|was|were) none of\b": "is not, does not belong to",
    r"\bone a node\b": "one on each node",
    r"\b(?:goes|go|going|went) on\b": "continue",
    r"\bgives? way without a word\b": "is overridden silently",
    r"\bthe whole of it\b": "all",
}
# `What`, `Who`, … begin a clause, and the reader waits for the verb.
CLAUSES = {"What", "Who", "Whose", "Where", "Whether", "Which", "How", "When", "Why", "That"}


def texts() -> list[Path]:
    found = [REPO / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    for folder in FOLDERS:
        found += [path for path in (REPO / folder).rglob("*") if path.suffix in ENDINGS and path.is_file()]
    return found


def sentences(path: Path) -> list[str]:
    """Lines of a file, each joined with the next: a phrase may be broken over two."""
    lines = [re.sub(r"^\s*(?:#|\"{3})?\s*", "", line).rstrip() for line in path.read_text("utf-8").splitlines()]
    return [f"{one} {two}" for one, two in zip(lines, [*lines[1:], ""], strict=True)]


@pytest.mark.parametrize("phrase", REFUSED)
def test_no_text_has_a_phrase_that_is_read_twice(phrase: str) -> None:
    found = [
        f"{path.relative_to(REPO)}:{number + 1}: {line[:100]}"
        for path in texts()
        for number, line in enumerate(sentences(path))
        if re.search(phrase, line, re.IGNORECASE)
    ]
    assert found == [], f"write: {REFUSED[phrase]}"


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
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if text and text.split()[0].strip("`,.:") in CLAUSES:
            wrong.append(f"{path.relative_to(REPO)}: {text.splitlines()[0]}")
    assert wrong == []
