"""A real cluster for the whole session."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit import shell
from kit.slurm.embedded import Cluster, Shape, down, up


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes with four placeholder GPUs each, as root isolated from each other; taken down at the end."""
    _skip_without_slurm()
    name = f"kit-test-{os.getpid()}"
    with _short_folder() as parent:
        folder = parent / "cluster"
        try:
            yield up(name, Shape(nodes=2, gpus_per_node=4, placeholder_gpus=True), folder=folder)
        finally:
            down(name, folder=folder)


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """A folder, not yet there, for a cluster of the test's own; whatever the test leaves of it is taken down."""
    _skip_without_slurm()
    with _short_folder() as parent:
        try:
            yield parent / "own"
        finally:
            down("own", folder=parent / "own")


def _skip_without_slurm() -> None:
    if shell.which("slurmctld") is None:
        pytest.skip("slurmctld is not installed: make setup")


@contextmanager
def _short_folder() -> Iterator[Path]:
    """Short enough a path for Slurm's sockets, and one that other users may enter."""
    folder = Path(tempfile.mkdtemp(prefix="kit-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
