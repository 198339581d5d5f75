"""`kit time` on a real Slurm: losses that a program is made to have are found in the ledger, each in its account."""

from __future__ import annotations

import fcntl
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import losses
from tests.cluster.lab import Lab

pytestmark = pytest.mark.cluster

JOB = """\
script = "program.py"
shape = "srun"
python = "/usr/bin/python3"
[preflight]
free_disk_gb = 0
[retry]
in_allocation = 1
requeue = 1
"""
RETRY = "[preflight]\nfree_disk_gb = 0\n[retry]\nin_allocation = {}\nrequeue = 1\n"
# Two roles of two ranks, started in both ways.
ROLES = """\
[roles.learner]
script = "program.py"
nodes = 1
shape = "torchrun"
[roles.actor]
script = "program.py"
nodes = 1
shape = "srun"
ranks_per_node = 2
"""
# Launcher and job of each start shape that needs an image. Of the groups of `replicas` one comes back alone, once.
SHAPES = {
    "torchrun": ("ddp", f'script = "program.py"\nshape = "torchrun"\n{RETRY.format(1)}'),
    "roles": ("roles", f'image = "train-cpu"\n{RETRY.format(1)}{ROLES}'),
    "replicas": (
        "diloco",
        f'script = "program.py"\nimage = "frameworks-cpu"\n{RETRY.format(0)}[diloco]\nreplicas_per_node = 1\nrestarts = 1\n',
    ),
}


def _check(lab: Lab, *options: str) -> None:
    run = lab.run(*options).folder
    assert lab.status(run)["state"] == "COMPLETED", (run / "logs" / "batch.log").read_text()
    made = json.loads(lab.kit("time", run.name, "--json").stdout)
    assert len([node for node in made["by_node"] if node]) == 2
    for account, (found, injected) in losses.check(made, run).items():
        print(f"{account}: {found:.2f} rank-seconds, injected {injected:.2f}")


def test_each_injected_loss_is_in_its_account(lab: Lab) -> None:
    """An input stall, saves, two deaths and the steps that one cost, a requeue, a straggler, an evaluation of one rank."""
    lab.write(JOB, losses.PROGRAM)
    _check(lab, "--no-container")


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_each_injected_loss_in_the_other_start_shapes(lab: Lab, shape: str, request: pytest.FixtureRequest) -> None:
    if shape == "replicas":
        request.getfixturevalue("frameworks_cpu")
    launcher, job = SHAPES[shape]
    lab.write(job, losses.PROGRAM, launcher=launcher)
    _check(lab)


@pytest.mark.slow
def test_a_sweep_is_the_sum_of_its_points(lab: Lab) -> None:
    """Two points at once, each with all losses, and each on one node."""
    resources = "[resources]\nnodes = 1\nranks_per_node = 4\n"
    lab.write(f"{JOB}{resources}[sweep.grid]\nenv.POINT = [1, 2]\n", losses.PROGRAM)
    done = lab.kit("sweep", "--cluster", lab.cluster.name, "--no-container", "--wait", check=False)
    assert done.returncode == 0, done.stderr
    sweep = Path(done.stdout.splitlines()[-1])
    every = json.loads(lab.kit("time", sweep.name, "--json").stdout)
    points = [json.loads(lab.kit("time", f"{sweep.name}.{n}", "--json").stdout) for n in range(2)]
    for number, made in enumerate(points):
        losses.check(made, sweep / "points" / f"{sweep.name}.{number}")
    # Each of the three is rounded to a millisecond.
    assert every["total_rank_s"] == pytest.approx(sum(made["total_rank_s"] for made in points), abs=0.002)
    for account, seconds in every["accounts_rank_s"].items():
        assert seconds == pytest.approx(sum(made["accounts_rank_s"].get(account, 0.0) for made in points), abs=0.2)


@pytest.mark.slow
def test_a_slow_image_is_in_its_account(lab: Lab, tmp_path: Path) -> None:
    """Another job copies an image to the nodes: for twenty seconds this one waits for it, and then copies its own."""
    cluster = lab.project / "clusters" / f"{lab.cluster.name}.toml"
    text = cluster.read_text()
    cluster.write_text(text.replace("[paths]", f'[paths]\ncache = "{tmp_path}"'))
    (tmp_path / "images").mkdir()
    lab.write(
        'script = "program.py"\nshape = "srun"\nimage = { name = "train-cpu", stage = "node" }\n[preflight]\nfree_disk_gb = 0\n',
        "pass",
    )  # fmt: skip
    try:
        with (tmp_path / "images" / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            slow = lab.submit("--set", "container.runtime=bubblewrap")
            lab.wait((slow / "logs" / "stage.log").exists, slow)
            time.sleep(20)
            held = time.time() - _event(slow, "phase", name="image")
        lab.wait_end(slow)
        copied = _time(lab, slow)["accounts_rank_s"]["image"] / 4 - held
        usual = _time(lab, lab.run("--set", "container.runtime=bubblewrap").folder)["accounts_rank_s"]["image"] / 4
    finally:
        cluster.write_text(text)
    stage = _event(slow, "phase", name="preflight") - _event(slow, "phase", name="image")
    assert stage > held
    assert _time(lab, slow)["accounts_rank_s"]["image"] == pytest.approx(4 * (stage + usual), rel=0.05)
    assert copied > 0


def _event(run: Path, event: str, **values: str) -> float:
    """When the batch script recorded it for the first time."""
    lines = (run / "state" / "events.jsonl").read_text().splitlines()
    return next(
        float(one["epoch"])
        for one in map(json.loads, lines)
        if one["event"] == event and all(one.get(key) == value for key, value in values.items())
    )


def test_a_run_that_lives_is_accounted_so_far(lab: Lab) -> None:
    """And one that reports nothing."""
    lab.write(
        JOB, "import os, time\nwhile not os.path.exists(os.environ['KIT_RUN_DIR'] + '/finish'):\n    time.sleep(0.1)\n"
    )
    run = lab.submit("--no-container")
    try:
        lab.wait(lambda: "program, not split" in _time(lab, run)["accounts_rank_s"], run)
        found = _time(lab, run)
        assert (found["live"], found["detail"]) == (True, "events")
        assert "kit_rank" in " ".join(found["notes"])
    finally:
        (run / "finish").touch()
    lab.wait_end(run)
    assert _time(lab, run)["live"] is False


def _time(lab: Lab, run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lab.kit("time", run.name, "--json").stdout)
    return found
