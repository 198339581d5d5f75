"""A cluster on which the lines of the ways of working are typed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two nodes with four placeholder GPUs each, without an image: the programs run in an environment that the nodes share."""
    store = tmp_path_factory.mktemp("no-images")
    with lab_on("ways", 2, store, tmp_path_factory.mktemp("ways")) as lab:
        yield lab
