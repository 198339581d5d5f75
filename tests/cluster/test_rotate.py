"""`kit rerun --rotate`: a planted node that flips one bit of one tensor is found by the ranks that it had."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import Lab
from tests.support import REPO

pytestmark = pytest.mark.cluster

# What a rank reports depends on the rank; on one node it is wrong. WHERE: a program that does not repeat.
PLAIN = """
import json, os
rank, node = int(os.environ["RANK"]), os.environ["SLURMD_NODENAME"]
with open(os.path.join(os.environ["KIT_RUN_DIR"], "metrics.jsonl"), "a") as out:
    for step in (1, 2):
        loss = rank + step / 8 + (node == os.environ.get("FLIPS")) * 2**-20
        if os.environ.get("CHANCE"):
            loss = int.from_bytes(os.urandom(4), "big") / 3
        print(json.dumps({"kind": "step", "time": "t", "restart": 0, "rank": rank, "step": step, "loss": loss}), file=out)
"""
PLAIN_JOB = """script = "program.py"
shape = "srun"
python = "python3"
[resources]
nodes = 4
gpus_per_node = 1
[preflight]
enabled = false
[monitor]
enabled = false
"""
# The kit's own training, on a node that flips a bit of what the first convolution gives.
FLIPPING = """
import os, runpy, sys
import torch

def flip(module, inputs, output):
    if isinstance(module, torch.nn.Conv2d):
        output.data.view(torch.int32).view(-1)[5] ^= 1 << 12

if os.environ["SLURMD_NODENAME"] == os.environ.get("FLIPS"):
    torch.nn.modules.module.register_module_forward_hook(flip)
sys.argv[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train.py")
runpy.run_path(sys.argv[0], run_name="__main__")
"""
TRAINING_JOB = """script = "program.py"
args = ["--epochs", "2", "--log-every", "1"]
[resources]
nodes = 4
gpus_per_node = 1
[checkpoint]
every = 8
keep = 99
async = false
"""


@pytest.fixture
def lab(wide_lab: Lab, tmp_path: Path) -> Iterator[Lab]:
    """A project of its own on the cluster of four nodes."""
    shutil.copytree(wide_lab.project / "clusters", tmp_path / "clusters")
    (tmp_path / ".git").mkdir()
    yield replace(wide_lab, project=tmp_path)


def rotated(lab: Lab, run: str, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lab.kit("rerun", run, "--rotate", "--json", *options).stdout)
    return found


def avoided(lab: Lab) -> list[str]:
    return [one["node"] for one in json.loads(lab.kit("nodes", "--json", "--cluster", lab.cluster.name).stdout)]


def test_a_deviation_that_follows_a_node_names_it(lab: Lab) -> None:
    lab.write(PLAIN_JOB, PLAIN)
    names = [node.name for node in lab.cluster.nodes]
    first = lab.run("--no-container", "--set", f"env.FLIPS={names[2]}").folder
    found = rotated(lab, first.name, "--avoid")
    assert found["node"] == names[2]
    assert [one["nodes"] for one in found["runs"]] == [names, [*names[1:], names[0]], [*names[2:], *names[:2]]]
    assert {(one["rank"], one["node"]) for one in found["suspects"]} == {(2, names[2]), (1, names[2]), (0, names[2])}
    # Each run's own log shows where its ranks were.
    assert f"node {names[2]} computes wrong numbers: in 3 of the 3 runs that had it" in found["conclusion"]
    log = (Path(found["runs"][1]["run_dir"]) / "logs/rank-0.log").read_text()
    assert "rank 0 of 4: node rank 0, local rank 0" in log
    assert avoided(lab) == [names[2]]
    refused = lab.kit("submit", "--no-container", "--cluster", lab.cluster.name, check=False)
    assert f"the job excludes {names[2]} (see 'kit nodes')" in refused.stderr
    lab.kit("nodes", "--forget", names[2], "--cluster", lab.cluster.name)


def test_sound_nodes_and_a_program_that_does_not_repeat(lab: Lab) -> None:
    lab.write(PLAIN_JOB.replace("nodes = 4", "nodes = 1"), PLAIN)
    names = [node.name for node in lab.cluster.nodes]
    sound = rotated(lab, lab.run("--no-container", "--set", f"slurm.nodelist={names[1]}").folder.name)
    assert (sound["node"], sound["parted"]) == (None, False)
    assert "2 numbers of each rank are equal to the last bit" in sound["conclusion"]
    assert [one["nodes"] for one in sound["runs"]] == [[names[1]], [names[0]], [names[2]]], (
        "others make up a ring of three"
    )
    chance = rotated(lab, lab.run("--no-container", "--set", "env.CHANCE=1").folder.name)
    assert (chance["node"], chance["parted"]) == (None, True)
    assert "no node explains it" in chance["conclusion"]
    assert avoided(lab) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_node_that_flips_a_bit_in_one_tensor_of_a_training(lab: Lab) -> None:
    """The last steps from a checkpoint, in containers; the program knows nothing of it."""
    lab.write(TRAINING_JOB, FLIPPING)
    shutil.copy(REPO / "launchers/ddp/train.py", lab.project)
    shutil.copytree(REPO / "launchers/lib", lab.project / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    names = [node.name for node in lab.cluster.nodes]
    first = lab.run("--set", f"env.FLIPS={names[1]}")
    assert first.done.returncode == 0, first.done.stderr
    steps = sorted(int(path.name[5:]) for path in (first.folder / "checkpoints").glob("step-*"))
    found = rotated(lab, first.folder.name)
    assert found["from_step"] == steps[-2], "the last one is the end"
    assert found["node"] == names[1]
    assert {(one["rank"], one["number"], one["step"]) for one in found["suspects"]} == {
        (1, "forward", 1), (0, "forward", 1), (3, "forward", 1)
    }  # fmt: skip
    assert avoided(lab) == [], "it is offered, and nobody was there to say yes"
