"""Releases of other people's programs, each in a folder of its own: `make foreign` makes them, or FOREIGN names where they are.

`make test` skips these tests, also where the releases are: KIT_FOREIGN=1, which scripts/foreign.sh sets, runs them.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("FOREIGN", HERE.parents[1] / ".foreign-venv" / "releases"))
# Which has what the programs import; the tests themselves run where the kit is.
PYTHON = os.environ.get("FOREIGN_PYTHON", str(HERE.parents[1] / ".foreign-venv" / "bin" / "python"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder where nobody asked for them: they would make `make test` minutes longer."""
    if "KIT_FOREIGN" not in os.environ:
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.skip(reason="other people's programs: make foreign"))


class Judge:
    """A program of this folder that answers a line of JSON with another, in a process of its own."""

    def __init__(self, program: str, *words: str) -> None:
        argv = [PYTHON, str(HERE / program), *words]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, question: object) -> Any:
        """Its answer."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline()
        assert said, f"{self._process.args!r} has ended"
        return json.loads(said)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(30)


def released(program: str) -> list[Path]:
    """The releases of a program that are here: FOLDER/<program>-<release>."""
    return sorted(FOLDER.glob(f"{program}-*"))


@pytest.fixture(scope="session")
def judges() -> Iterator[dict[Path, Judge]]:
    """One for each release that was asked, ended when all is done."""
    found: dict[Path, Judge] = {}
    yield found
    for judge in found.values():
        judge.close()
