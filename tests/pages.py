"""Reads the pages of docs/ and README.md for their tests: blocks, files that blocks name, commands and links."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPO

sybil = pytest.importorskip("sybil", reason="sybil is not installed: make setup")

from sybil.parsers.markdown import CodeBlockParser, SkipParser  # noqa: E402
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer  # noqa: E402

PAGES = [REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").rglob("*.md"))]
# A shown output is the output made, but for what `…` stands for: times, ids, lines left out.
_CHECKER = doctest.OutputChecker()
_BLOCK_S = 240


def name_of(page: Path) -> str:
    """The page's path in the repository."""
    return str(page.relative_to(REPO))


class FileParser:
    """Blocks with a title, such as ```toml title="job.toml": the file is written into the page's folder."""

    def __init__(self) -> None:
        self._lexer = RawFencedCodeBlockLexer(re.compile(r'\w+ title="(?P<file>[^"]+)"$\n', re.MULTILINE))

    def __call__(self, document: Any) -> Iterator[Any]:
        """The blocks with what writes them."""
        for region in self._lexer(document):
            region.parsed = (region.lexemes["file"], str(region.lexemes["source"]))
            region.evaluator = self.evaluate
            yield region

    @staticmethod
    def evaluate(example: Any) -> None:
        """Write the file."""
        name, text = example.parsed
        path = Path(example.namespace["folder"]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def run_console(example: Any) -> str | None:
    """Run each `$` command of a block; what is wrong with its exit code or its output, if anything."""
    folder, env = Path(example.namespace["folder"]), example.namespace["env"]
    for command, shown in commands(str(example.parsed)):
        wanted = int(found[1]) if (found := re.search(r"# exit code (\d+)$", command)) else 0
        # Both streams in one, as on a terminal.
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env={**env, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_BLOCK_S,
            check=False,
        )
        if done.returncode != wanted:
            return f"$ {command}\nexit code {done.returncode}, not {wanted}\n{done.stdout}"
        if shown and not matches(shown, done.stdout):
            return f"$ {command}\nshown:\n{shown}\nmade:\n{done.stdout}"
    return None


def commands(block: str) -> list[tuple[str, str]]:
    """Each command of a console block with the output that is shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\"):
            found[-1] = (f"{found[-1][0]}\n{line.strip()}", [])
        elif found:
            found[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in found]


def matches(shown: str, made: str) -> bool:
    """Whether an output is the one that is shown. `…` stands for any text, a line of it alone for any lines, and
    a run's id for any run's."""
    want = re.sub(r"\b\d{8}-\d{6}-[0-9a-f]{4}\b", "...", shown.replace("…", "...").replace("/home/ada/", ".../"))
    want = re.sub(r"[ \t]+", " ", want).strip() + "\n"
    want = re.sub(r"^\.\.\.\n(?=.)", "...", want, flags=re.MULTILINE)
    got = "\n".join(re.sub(r"[ \t]+", " ", line).rstrip() for line in made.splitlines()).strip() + "\n"
    return _CHECKER.check_output(want, got, doctest.ELLIPSIS)


def examples(page: Path, folder: Path, env: Mapping[str, str]) -> list[Any]:
    """What a page has to run, in its order."""
    parsers = [FileParser(), CodeBlockParser(language="console", evaluator=run_console), SkipParser()]
    document = sybil.Sybil(parsers=parsers, path=str(REPO), pattern="*.md").parse(page)
    document.namespace.update(folder=str(folder), env=dict(env))
    return list(document.examples())


def blocks(text: str) -> list[tuple[str, str, str]]:
    """Each fenced block of a page: the line above it, its info line, its text."""
    found = re.findall(r"(?:^([^\n]*)\n(?:\n)?)?^```([^\n]*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(above, info.strip(), body) for above, info, body in found]


def kit_commands(text: str) -> Iterator[list[str]]:
    """The words of each `kit …` that a page's code names, up to a pipe, a comment or a placeholder's end."""
    spans = [body for _, info, body in blocks(text) if info.split(" ")[0] in {"console", "text", ""}]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    spans += re.findall(r"`([^`\n]+)`", prose)
    for span in spans:
        for found in re.finditer(r"(?:^|(?<=[$;(]) *)kit ([^\n;|)#`>]+)", span, flags=re.MULTILINE):
            try:
                yield shlex.split(re.sub(r"[\[\]…]", " ", found[1]).replace("'", ""))
            except ValueError:
                continue
