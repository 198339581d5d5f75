"""Replica groups on the embedded cluster, in the container: they learn, die, come back, and end with the same parameters."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from kit.record import metrics
from kit.slurm.embedded import ClusterSize, up
from tests.cluster.conftest import project_on
from tests.cluster.lab import Lab, Run
from tests.cluster.storm import Storm, outcome
from tests.support import REPO

pytestmark = pytest.mark.cluster

SMALL = ["--layers", "2", "--dim", "32", "--heads", "2", "--context", "32", "--batch-size", "16", "--warmup", "20"]
GROUPS = 4

_UNDISTURBED: dict[int, Run] = {}


def prepare(lab: Lab, example: str = "diloco") -> None:
    """The example's job file becomes the lab's."""
    text = (REPO / "examples" / example / "job.toml").read_text(encoding="utf-8")
    (lab.project / "job.toml").write_text(text, encoding="utf-8")


def options(steps: int, *more: str) -> list[str]:
    args = json.dumps(["--steps", str(steps), *SMALL])
    words = [f"args={args}", "seed=7", "checkpoint.every=1", "diloco.timeout=10", *more]
    return [word for text in words for word in ("--set", text)]


def undisturbed(lab: Lab, steps: int) -> Run:
    """An undisturbed run of this many steps; made once."""
    if steps not in _UNDISTURBED:
        _UNDISTURBED[steps] = lab.run(*options(steps))
    return _UNDISTURBED[steps]


@pytest.mark.usefixtures("frameworks_cpu")
def test_four_groups_on_two_nodes_learn_and_agree(lab: Lab) -> None:
    prepare(lab)
    run = undisturbed(lab, 100)
    assert run.done.returncode == 0, run.log("batch")
    seen = outcome(run.folder, GROUPS)
    assert seen.wrong == ()
    assert (seen.outer_steps, seen.averaged) == (10, 1.0)
    losses = [record["loss"] for record in metrics.records(run.folder) if record["kind"] == "step"]
    assert losses[-1] < 0.7 * losses[0]
    quorum = lab.status(run.folder)["quorum"]
    assert isinstance(quorum, dict)
    assert quorum["groups"] == [0, 1, 2, 3]
    assert lab.settled(run.folder) == []


@pytest.fixture
def four_nodes(train_cpu: Path, own_folder: Path, tmp_path: Path) -> Lab:
    """A project on a cluster of four nodes."""
    made = up("own", ClusterSize(nodes=4, gpus_per_node=1, placeholder_gpus=True), folder=own_folder)
    project = tmp_path / "project"
    project.mkdir()
    return project_on(made, train_cpu, project)


@pytest.mark.slow
@pytest.mark.usefixtures("frameworks_cpu")
def test_two_groups_of_two_nodes_each(four_nodes: Lab) -> None:
    prepare(four_nodes, "diloco-multinode")
    run = four_nodes.run(*options(60, "resources.gpus_per_node=1"))
    assert run.done.returncode == 0, run.log("batch")
    assert outcome(run.folder, 2).wrong == ()
    finals = [record for record in metrics.records(run.folder) if record["kind"] == "final"]
    assert {(final["world_size"], final["nodes"]) for final in finals} == {(2, 2)}
    assert four_nodes.settled(run.folder) == []


@pytest.mark.slow
@pytest.mark.usefixtures("frameworks_cpu")
def test_a_storm_of_faults_ends_where_the_calm_run_does(lab: Lab) -> None:
    prepare(lab)
    steps = 600
    run = lab.submit(*options(steps, "diloco.restarts=20"))
    storm = Storm(lab, run, random.Random(7), GROUPS)
    storm.blow(6, pause=(1, 4))
    job = lab.wait_end(run)
    log = "\n".join([*storm.done, (run / "logs" / "batch.log").read_text()])
    assert job["JobState"] == "COMPLETED", log
    seen = outcome(run, GROUPS)
    assert seen.wrong == (), log
    calm = outcome(undisturbed(lab, steps).folder, GROUPS)
    assert seen.test_loss == pytest.approx(calm.test_loss, rel=0.03), log
    assert lab.settled(run) == []


BROKEN = """\
import os, sys, time
if os.environ["REPLICA_GROUP_ID"] == "1":
    sys.exit("the data set of group 1 is not there")
time.sleep(600)
"""


@pytest.mark.usefixtures("frameworks_cpu")
def test_a_group_that_can_never_start_ends_the_job_with_its_own_error(lab: Lab) -> None:
    """One of two groups: what is left is not a quorum, and the job does not wait for one."""
    prepare(lab)
    (lab.project / "program.py").write_text(BROKEN, encoding="utf-8")
    run = lab.run("--set", "script=program.py", "--set", "args=[]", "--set", "resources.nodes=1")
    assert run.done.returncode == 1
    assert "the data set of group 1 is not there" in run.log("batch")
    assert lab.settled(run.folder) == []


@pytest.mark.slow
@pytest.mark.usefixtures("frameworks_cpu")
def test_two_jobs_are_one_training(lab: Lab) -> None:
    """The second job's groups join the first one's lighthouse; one that is cancelled leaves the other its averages."""
    prepare(lab)
    shared = ("diloco.groups=4", "resources.nodes=1", "diloco.timeout=20")
    first = lab.submit(*options(4000, *shared))
    places = first / "state" / "roles.json"
    lab.wait(lambda: places.is_file() and "lighthouse" in places.read_text(), first)
    found = json.loads(places.read_text())["lighthouse"]
    address = f'"http://{found["addresses"][0]}:{found["ports"]["http"]}"'
    second = lab.submit(*options(4000, *shared, "diloco.first_group=2", f"diloco.lighthouse={address}"))
    assert f"Another job says which groups are alive: {address[1:-1]}" in (second / "layout.txt").read_text()

    def groups(run: Path) -> list[int]:
        quorum = metrics.quorum(run)
        return [*quorum.groups] if quorum else []

    lab.wait(lambda: groups(first) == groups(second) == [0, 1, 2, 3], second)
    lab.kit("cancel", str(second))
    lab.wait(lambda: groups(first) == [0, 1], first)
    lab.kit("cancel", str(first))
