"""Keeps the outcome of each test of a run for tests/rows.py: one file for each of `make test`, tests/training and tests/foreign.

A pytest plugin, loaded by tests/conftest.py. Under xdist the controller gets the reports of every worker's tests, and only it
writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / ".test-outcomes"
SKIPS = ".skips"


class Outcomes:
    """Test, as `tests/unit/test_x.py::test_y` whatever its parameters -> `passed`, `failed`, or the reasons of its skips."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: dict[str, list[str]] = {}
        self.skipped: dict[str, str] = {}  # a test with its parameters -> the reason

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of each phase of a test; what counts is a call, a skip, or a failure before or after."""
        if report.when != "call" and report.outcome == "passed":
            return
        said = self.found.setdefault(report.nodeid.partition("[")[0], [])
        word = f"skipped: {_reason(report.longrepr)}" if report.outcome == "skipped" else report.outcome
        if word not in said:
            said.append(word)
        if report.outcome == "skipped":
            self.skipped[report.nodeid] = _reason(report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that is skipped whole."""
        if report.outcome == "skipped":
            self.skipped[report.nodeid] = _reason(report.longrepr)
            self.found[report.nodeid] = [f"skipped: {self.skipped[report.nodeid]}"]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep them."""
        self._path.parent.mkdir(exist_ok=True)
        self._path.write_text(json.dumps(self.found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        skips = self._path.with_suffix(SKIPS)
        skips.write_text(json.dumps(self.skipped, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _reason(longrepr: Any) -> str:
    """Of a skip: pytest gives file, line and `Skipped: REASON`."""
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ").splitlines()[0]


def read() -> dict[str, list[str]]:
    """The outcomes of the last runs, together."""
    together: dict[str, list[str]] = {}
    for path in sorted(FOLDER.glob("*.json")):
        for test, words in json.loads(path.read_text(encoding="utf-8")).items():
            together[test] = sorted({*together.get(test, []), *words})
    return together
