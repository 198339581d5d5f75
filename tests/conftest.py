"""Hooks for all tests: the outcomes of a whole run are kept (tests/outcomes.py), and files have an order (tests/order.py)."""

from __future__ import annotations

import os

import pytest

from tests import order
from tests.outcomes import FOLDER, Outcomes


def pytest_configure(config: pytest.Config) -> None:
    """KIT_OUTCOMES names the run: `make test`, scripts/training.sh and scripts/foreign.sh set it where all of their tests run."""
    name = os.environ.get("KIT_OUTCOMES")
    if name and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(FOLDER / f"{name}.json"))


@pytest.hookimpl(trylast=True)  # of what is not deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files by tests/order.py; the tests of a file keep their order."""
    place = {file: number for number, file in enumerate(order.in_turn(item.nodeid for item in items))}
    items.sort(key=lambda item: place[item.nodeid.partition("::")[0]])
