"""Checkpoints in memory of the kit's programs: after a kill -9, a start continues from memory, and no checkpoint file is read."""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import laid_out
from tests.training.test_gpt import CASES, VALUES, Case, need

pytestmark = pytest.mark.timeout(240)
REPO = Path(__file__).parents[2]
SMALL = ("--layers", 2, "--dim", 64, "--context", 64, "--log-every", 1, "--steps", 20)
IMAGES = Case("images", "ddp/train.py", ("--epochs", 2, "--width", 8))
EVERY = 3


class Node:
    """The memory of one node of a job: what step kit-memory makes, and what ranks of the job have in their environment."""

    def __init__(self) -> None:
        job = random.randrange(10**9, 2 * 10**9)
        self.folder = Path(f"/dev/shm/kit-memory-{os.geteuid()}-{job}.0-test")
        self.folder.mkdir(mode=0o700)
        self.env = {
            "PYTHONPATH": f"{REPO / 'launchers'}:{laid_out.LIB}",
            "SLURM_JOB_ID": str(job),
            "SLURMD_NODENAME": "test",
            "KIT_CHECKPOINT_MEMORY_EVERY": str(EVERY),
        }


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    shutil.rmtree(made.folder)


@pytest.mark.parametrize(
    "case",
    # DeepSpeed's engine loads from files alone, so the kit refuses the key there.
    [
        pytest.param(case, marks=[pytest.mark.smoke] if case.name == "ddp" else [])
        for case in (*CASES, IMAGES)
        if not case.program.startswith("deepspeed/")
    ],
    ids=lambda case: case.name,
)
def test_a_killed_run_continues_from_memory_and_is_the_same(
    case: Case, node: Node, training: Any, tools: Any, tmp_path: Path
) -> None:
    """Losses and gradients equal those of an uninterrupted run, to the bit. Lost are the steps since the last multiple of 3."""
    need(case.program)
    small = SMALL if case is not IMAGES else ("--log-every", 1)
    options = (*small, *_configured(case.options, tmp_path))
    whole = training.run(case.program, "whole", *options)
    begun = training.start(case.program, "again", *options, env=node.env)
    begun.until_step(8)
    begun.kill()
    assert not [*(tmp_path / "again" / "checkpoints").glob("step-*")]
    reached = max(record["step"] for record in tools.records(begun.run_dir, "step"))
    ended = training.run(case.program, "again", *options, env=node.env)
    (resumed,) = tools.records(ended.run_dir, "resumed")
    assert resumed["path"] == "memory"
    # A rank may have been killed while it made the next step.
    assert reached - EVERY <= resumed["step"] <= reached + 1
    assert resumed["step"] % EVERY == 0
    assert tools.curve(ended.run_dir, *VALUES[:2]) == tools.curve(whole.run_dir, *VALUES[:2])
    (event,) = map(json.loads, (ended.run_dir / "state" / "events.jsonl").read_text().splitlines())
    assert (event["event"], event["step"], event["source"]) == ("resumed", str(resumed["step"]), "memory")


def _configured(options: tuple[object, ...], folder: Path) -> tuple[object, ...]:
    from tests.training.test_gpt import ZERO3

    (folder / "zero3.json").write_text(json.dumps(ZERO3))
    return tuple(str(folder / "zero3.json") if word == "zero3.json" else word for word in options)


def test_a_newer_file_is_taken_and_older_memory_is_not(node: Node, training: Any, tools: Any) -> None:
    """A stop saves a file at its step, beyond the last step in memory. The next start takes the file."""
    import signal

    options = (*SMALL, "--checkpoint-memory-every", 7)
    begun = training.start("ddp/train_gpt.py", "run", *options, env=node.env)
    begun.until_step(8)
    for process in begun.processes:
        process.send_signal(signal.SIGUSR1)
    assert set(begun.wait()) == {138}, begun.output()
    ended = training.run("ddp/train_gpt.py", "run", *options, env=node.env)
    (resumed,) = tools.records(ended.run_dir, "resumed")
    assert resumed["path"].endswith(f"step-{resumed['step']:08d}")
    assert resumed["step"] >= 8
    events = [json.loads(line) for line in (ended.run_dir / "state" / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["source"]) for event in events] == [("resumed", "file")]


def test_a_torch_state_keeps_types_values_and_identity(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.syspath_prepend(str(REPO / "templates" / "kit_node"))
    from kit_memory_state import StateLayout, read_state

    shared = torch.arange(10, dtype=torch.bfloat16)
    given = {
        "shared": [shared, shared],
        "transposed": torch.arange(12.0).view(3, 4).T,
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.empty(0, 4, dtype=torch.int32),
        "flags": torch.tensor([True, False]),
        "parameter": torch.nn.Parameter(torch.ones(3)),
    }
    layout = StateLayout(given)
    memory = memoryview(bytearray(layout.size))
    layout.write(memory)
    found = read_state(memory)
    memory[:] = bytes(len(memory))
    assert found["shared"][0] is found["shared"][1]
    for name in ("transposed", "scalar", "empty", "flags", "parameter"):
        assert (found[name].dtype, found[name].shape) == (given[name].dtype, given[name].shape)
        assert torch.equal(found[name], given[name])
    assert torch.equal(found["shared"][0], shared)
