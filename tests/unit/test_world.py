"""A rank whose processes train in another world than the run's: a launcher inside the rank began a training of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kit import shell
from tests.support import REPO

# torch is no package of the kit; of it, this much is asked. tests/training starts the real one.
_TORCH = """
import os
def is_available(): return True
def is_initialized(): return True
def get_world_size(): return int(os.environ["MEETS"])
"""
_PROGRAM = """
import torch.distributed
import kit_rank
progress = kit_rank.RankReporter(folder={folder!r}, name="@0")
progress.step(0)
progress.step(1)
print("trained")
"""


def _train(tmp_path: Path, **env: str) -> shell.Completed:
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text(_TORCH)
    reports = tmp_path / "reports"
    reports.mkdir()
    program = _PROGRAM.format(folder=str(reports))
    path = f"{tmp_path}:{REPO / 'templates/kit_node'}"
    return shell.run(
        [sys.executable, "-c", program], env={"PATH": os.environ["PATH"], "PYTHONPATH": path, **env}, check=False
    )


@pytest.mark.parametrize(
    "env",
    [
        # Four tasks of two nodes, each with a torchrun that starts one process.
        {"KIT_WORLD_SIZE": "4", "KIT_NNODES": "2", "WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "1", "MEETS": "1"},
        # One task on each node, with a torchrun that starts four.
        {"KIT_WORLD_SIZE": "2", "KIT_NNODES": "2", "WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1", "MEETS": "4"},
        # The same with as many processes as the run has ranks.
        {"KIT_WORLD_SIZE": "2", "KIT_NNODES": "2", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1", "MEETS": "2"},
        # mpirun in each rank, and a program that takes its world from it.
        {"KIT_WORLD_SIZE": "4", "KIT_NNODES": "2", "WORLD_SIZE": "2", "MEETS": "2"},
    ],
)
def test_a_smaller_world_than_planned_ends_the_rank(tmp_path: Path, env: dict[str, str]) -> None:
    done = _train(tmp_path, **env)
    assert done.returncode == 1
    assert "trained" not in done.stdout
    worlds = f"in a world of {env['MEETS']}, and the run has {env['KIT_WORLD_SIZE']} ranks on 2 nodes"
    assert f"RuntimeError: this process trains {worlds}" in done.stderr


@pytest.mark.parametrize(
    "env",
    [
        {"KIT_WORLD_SIZE": "4", "KIT_NNODES": "2", "WORLD_SIZE": "4", "MEETS": "4"},
        # A torchrun on each node that has met the other's.
        {"KIT_WORLD_SIZE": "2", "KIT_NNODES": "2", "WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2", "MEETS": "8"},
        # The program's own choice of a world: replica groups, or a server beside the ranks.
        {"KIT_WORLD_SIZE": "4", "KIT_NNODES": "2", "WORLD_SIZE": "4", "MEETS": "2"},
        # Outside a run, and in a run folder from before.
        {"WORLD_SIZE": "1", "MEETS": "1"},
        {"KIT_NNODES": "2", "WORLD_SIZE": "1", "MEETS": "1"},
    ],
)
def test_the_planned_world_and_a_joined_one_are_left_alone(tmp_path: Path, env: dict[str, str]) -> None:
    done = _train(tmp_path, **env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained"
