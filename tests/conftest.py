"""Hooks for all tests: the outcomes of a whole run are kept (tests/outcomes.py), files have an order (tests/order.py), and what
commands print with --json is checked (tests/json_answers.py).

Tests that need no cluster leave nothing in the developer's own folders: XDG_CACHE_HOME and its like name empty folders there.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import shell
from tests import json_answers, order
from tests.outcomes import FOLDER, Outcomes

_ISOLATED = tuple(Path(__file__).parent / name for name in ("unit", "golden", "scripts", "hostile", "why"))
_XDG = ("CACHE", "CONFIG", "DATA", "STATE")


@pytest.fixture(scope="module", autouse=True)
def _own_xdg_folders(request: pytest.FixtureRequest) -> Iterator[None]:
    """Empty user folders of a module's own, for its process and all that it starts. Tests of clusters share the user's caches."""
    if not any(map(request.path.is_relative_to, _ISOLATED)):
        yield
        return
    # A short path: a cluster has sockets in its folder.
    with tempfile.TemporaryDirectory(prefix="kit-xdg-") as folder, pytest.MonkeyPatch.context() as patch:
        for name in _XDG:
            patch.setenv(f"XDG_{name}_HOME", f"{folder}/{name.lower()}")
        yield


def _take_signals() -> None:
    """Take signals that a shell's background (SIGINT) or nohup (SIGHUP) ignores: the children of tests would ignore them, too."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_configure(config: pytest.Config) -> None:
    """KIT_OUTCOMES names the run: `make test`, scripts/training.sh and scripts/foreign.sh set it where all of their tests run."""
    _take_signals()
    shell.run = json_answers.checked(shell.run)
    name = os.environ.get("KIT_OUTCOMES")
    if name and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(FOLDER / f"{name}.json"))


@pytest.hookimpl(trylast=True)  # of what is not deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files by tests/order.py; the tests of a file keep their order."""
    place = {file: number for number, file in enumerate(order.in_turn(item.nodeid for item in items))}
    items.sort(key=lambda item: place[item.nodeid.partition("::")[0]])
