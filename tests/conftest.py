"""What every kind of test shares: the outcomes of a whole run are kept (tests/outcomes.py)."""

from __future__ import annotations

import os

import pytest

from tests.outcomes import FOLDER, Outcomes


def pytest_configure(config: pytest.Config) -> None:
    """KIT_OUTCOMES names the run: `make test` and scripts/training.sh set it where all of their tests run."""
    name = os.environ.get("KIT_OUTCOMES")
    if name and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(FOLDER / f"{name}.json"))
