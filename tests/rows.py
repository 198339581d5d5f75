"""Checks that the last run of the tests shows every row of tests/capabilities.md: a row whose tests were all skipped fails.

    python -m tests.rows

`make test` and `.ci/run` end with it. It reads what became of the tests of `make test`, and of tests/training where they ran
(tests/outcomes.py). A row is shown by a test that passed; a row that names no test, or only such as other targets run (make slow,
make faults), is not judged. Where all were skipped for want of a part of the system (PARTS), the row is reported and fails nothing,
unless KIT_TEST_HAS names the part: CI sets it for what its machine has. Exit code: 0; 1, a row is not shown; 69, no outcomes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.outcomes import read

PAGE = Path(__file__).with_name("capabilities.md")
TEST = re.compile(r"tests/[\w/]+\.py(?:::\w+)?")
# What a machine may lack -> the words of a skip for want of it.
PARTS: Mapping[str, re.Pattern[str]] = {
    "training": re.compile(r"make training|could not import 'torch'"),
    "foreign": re.compile(r"make foreign"),
    "images": re.compile(r"kit build-image|cannot be built here|requirements\.in and build it|torch is in the image"),
    "mirror": re.compile(r"mirror has newer packages"),
    "checkouts": re.compile(r"names no checkout|MEGATRON_LM"),
    "pyxis": re.compile(r"Pyxis"),
    "enroot": re.compile(r"Enroot is not|enroot is not"),
    "bubblewrap": re.compile(r"bubblewrap is not"),
    "slurm": re.compile(r"slurmctld is not"),
    "accounting": re.compile(r"slurmdbd"),
    "root": re.compile(r"root"),
    "engine": re.compile(r"engine\.sh up"),
    "tools": re.compile(
        r"(skopeo|podman|umoci|tmux|shellcheck|zstd|docker-registry|hatchling) is not installed|ssh-keygen|sbom"
    ),
}


def rows(page: str) -> dict[str, list[str]]:
    """Row -> the tests that it names, of the rows that name one."""
    cells = (line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| [A-Z]\d*\.\d", line))
    named = {row[0]: TEST.findall(row[-1]) for row in cells}
    return {row: tests for row, tests in named.items() if tests}


def part_of(word: str) -> str | None:
    """The part of the system that a skip is for want of; None for another reason."""
    return next((part for part, said in PARTS.items() if said.search(word)), None)


def judged(tests: Iterable[str], outcomes: Mapping[str, list[str]], has: set[str]) -> tuple[str, str] | None:
    """`missing` or `failed` and why, of a row that nothing showed; None where a test passed, or no test was due."""
    words = [word for test in tests for word in _of(test, outcomes)]
    if not words or "passed" in words or "failed" in words:  # a failure has failed the run itself
        return None
    reasons = sorted({word.removeprefix("skipped: ") for word in words})
    lacking = [part_of(word) for word in reasons]
    honest = all(part is not None and part not in has for part in lacking)
    return ("missing" if honest else "failed"), "; ".join(reasons)


def _of(test: str, outcomes: Mapping[str, list[str]]) -> list[str]:
    """The outcomes of a test, of all tests of a file that is named whole, or of a file that was skipped whole."""
    file = test.partition("::")[0]
    found = outcomes.get(test, []) or [
        word for name, words in outcomes.items() if "::" not in test and name.startswith(f"{file}::") for word in words
    ]
    return found or outcomes.get(file, [])


def main() -> int:
    """The exit code."""
    outcomes = read()
    if not outcomes:
        print("rows: no test has run yet: make test", file=sys.stderr)
        return 69
    has = set(filter(None, os.environ.get("KIT_TEST_HAS", "").split(",")))
    if unknown := has - PARTS.keys():
        print(
            f"rows: KIT_TEST_HAS: no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}",
            file=sys.stderr,
        )
        return 1
    found = {row: judged(tests, outcomes, has) for row, tests in rows(PAGE.read_text(encoding="utf-8")).items()}
    for row, verdict in found.items():
        if verdict:
            print(f"rows: {row} of tests/capabilities.md is shown by no test of this run ({verdict[0]}): {verdict[1]}")
    failed = [row for row, verdict in found.items() if verdict and verdict[0] == "failed"]
    missing = sum(verdict is not None for verdict in found.values()) - len(failed)
    print(
        f"rows: {len(found)} with tests, {missing} not shown for want of a part of this machine, {len(failed)} skipped otherwise"
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
