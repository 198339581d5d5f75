"""Launcher ray, with a real Ray on CPUs: who is in the cluster, how a job ends, and what is left of it."""

from __future__ import annotations

import getpass
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.conftest import _URGENT_PARTITION, lab_on
from tests.cluster.lab import Lab, Process, job_id
from tests.foreign.conftest import PYTHON
from tests.support import REPO

pytestmark = pytest.mark.cluster

JOB = f'script = "program.py"\npython = "{PYTHON}"\nseed = 3\n'
TWO_NODES = "[resources]\nnodes = 2\ngpus_per_node = 2\n[preflight]\nfree_disk_gb = 0\n"
LOOK = """\
import os
import ray
ray.init(address="auto")
@ray.remote(num_cpus=1, num_gpus=1, scheduling_strategy="SPREAD")
class One:
    def place(self):
        return os.environ["SLURMD_NODENAME"], os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("RANK")
ones = [One.remote() for _ in range(4)]
print("address", os.environ["RAY_ADDRESS"].count(":"))
print("places", sorted(ray.get([one.place.remote() for one in ones])))
print("has", ray.cluster_resources()["CPU"], ray.cluster_resources()["GPU"])
"""
WAIT = """\
import os, signal, sys, time
import ray
ray.init()
@ray.remote(num_cpus=1)
class Counter:
    count = 0
    def add(self):
        self.count += 1
        return self.count
counter = Counter.remote()
came = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda got, _: came.append(got))
while not came:
    time.sleep(0.1)
    print("count", ray.get(counter.add.remote()), flush=True)
time.sleep(2)
print("saved", ray.get(counter.add.remote(), timeout=10), flush=True)
sys.exit(128 + came[0])
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A cluster whose partition `urgent` may take the nodes of the default one."""
    if not Path(PYTHON).exists() or subprocess.run([PYTHON, "-c", "import ray"], check=False).returncode:
        pytest.skip("ray is not installed: make foreign")
    store = tmp_path_factory.mktemp("store")
    with lab_on("ray", 2, store, tmp_path_factory.mktemp("project"), _URGENT_PARTITION) as lab:
        yield lab


@pytest.fixture(autouse=True)
def nothing_runs_on(lab: Lab) -> Iterator[None]:
    """A job that a failed test has left would hold the nodes."""
    yield
    lab.slurm("scancel", f"--user={getpass.getuser()}", check=False)


def write(lab: Lab, program: str, more: str = "", *, top: str = "") -> None:
    lab.write(f"{JOB}{top}{TWO_NODES}{more}", program, launcher="ray")


def said(run: Path) -> str:
    """All that the run's programs have written."""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in (run / "logs").rglob("*.log"))


def left(lab: Lab, run: Path) -> list[str]:
    """All that is still there of a run, Ray's folders and its token among it."""
    return [*lab.settled(run), *folders_of(run), *map(str, (run / "state").glob("ray-token*"))]


def folders_of(run: Path) -> list[str]:
    """Ray's folders of a run. They are on this machine, where other clusters' jobs have theirs."""
    return [str(path) for path in Path("/tmp").glob(f"kit-ray-{os.getuid()}-{job_id(run)}.*")]


def of_ray(lab: Lab, run: Path, name: str) -> list[Process]:
    """Ray's processes of a name, all nodes'."""
    return [one for one in lab.processes(run) if Path(one.argv[0]).name == name]


def node_of(process: Process) -> str:
    found = re.search(rb"(?:^|\0)SLURMD_NODENAME=([^\0]+)", process.environ)
    assert found
    return found[1].decode()


def counts(run: Path) -> bool:
    return "count 2" in said(run)


def test_all_nodes_are_there_before_the_program(lab: Lab) -> None:
    write(lab, LOOK)
    run = lab.run("--no-container")
    text = said(run.folder)
    assert run.done.returncode == 0, text[-5000:]
    assert "address 1" in text
    assert "has 8.0 4.0" in text
    nodes = [node.name for node in lab.cluster.nodes]
    for node in nodes:
        assert f"Ray has {node}: 4 CPUs, 2 GPUs" in text
    wanted = [(node, gpu, None) for node in sorted(nodes) for gpu in ("0", "1")]
    assert f"places {wanted}" in text
    assert left(lab, run.folder) == []


def test_two_jobs_share_the_nodes(lab: Lab) -> None:
    write(lab, WAIT)
    runs = [lab.submit("--no-container") for _ in range(2)]
    for run in runs:
        lab.wait(partial(counts, run), run)
    for run in runs:
        lab.kit("cancel", run.name)
    for run in runs:
        assert lab.wait_end(run)["JobState"] == "CANCELLED"
    assert [left(lab, run) for run in runs] == [[], []]


@pytest.mark.parametrize("how", ["cancel", "lead signal", "scancel"])
def test_the_program_is_told_and_ray_stays_until_it_has_saved(lab: Lab, how: str) -> None:
    write(lab, WAIT)
    run = lab.submit("--no-container")
    lab.wait(partial(counts, run), run)
    if how == "cancel":
        lab.kit("cancel", run.name)
    elif how == "lead signal":
        lab.slurm("scancel", "--batch", "--signal=USR1", lab.job(run)["JobId"])
    else:
        lab.slurm("scancel", lab.job(run)["JobId"])
    lab.wait_end(run)
    text = said(run)
    assert "saved" in text, text[-5000:]
    assert f"exit code {138 if how == 'lead signal' else 143}" in text
    assert left(lab, run) == []


@pytest.mark.parametrize(("process", "head"), [("raylet", True), ("raylet", False), ("gcs_server", True)])
def test_the_death_of_a_process_of_rays_ends_the_job(lab: Lab, process: str, head: bool) -> None:
    write(lab, WAIT)
    run = lab.submit("--no-container")
    lab.wait(partial(counts, run), run)
    first = lab.cluster.nodes[0].name
    (one,) = [p for p in of_ray(lab, run, process) if (node_of(p) == first) is head]
    node = node_of(one)
    os.kill(one.pid, signal.SIGKILL)
    ended = lab.wait_end(run)
    text = said(run)
    assert ended["JobState"] == "FAILED", text[-5000:]
    assert f"error: Ray is gone on {node}: {process} was ended by signal 9" in text, text[-5000:]
    assert ended["ExitCode"] == "137:0"
    assert [*(run / "logs").glob(f"ray-*/ray-{node}/{process}.out")]
    # The head's program may be killed while it saves, and its node's folder then goes with the next job.
    assert lab.settled(run) == []


def test_a_node_that_does_not_join_is_named(lab: Lab) -> None:
    write(lab, LOOK, '[roles.ray-worker]\ncommand = ["sleep", "600"]\n[env]\nRAY_START_TIMEOUT_S = "60"\n')
    run = lab.run("--no-container")
    text = said(run.folder)
    assert run.done.returncode == 74, text[-5000:]
    second = lab.cluster.nodes[1].name
    assert f"error: 1 of 2 nodes did not join the Ray cluster within 60 s: {second}; look" in text
    assert left(lab, run.folder) == []


def test_a_wrong_option_of_rays_is_the_last_line(lab: Lab) -> None:
    write(lab, LOOK, '[roles.ray-worker]\nenv = { RAY_START_OPTIONS = "--num-cpu=1" }\n')
    run = lab.run("--no-container")
    assert run.done.returncode == 2
    assert "ray start ended with exit code 2; its last line: Error: No such option" in said(run.folder)
    assert left(lab, run.folder) == []


def test_what_a_killed_job_left_goes_with_the_next(lab: Lab) -> None:
    write(lab, WAIT)
    run = lab.submit("--no-container")
    lab.wait(partial(counts, run), run)
    for one in lab.processes(run):
        if "ray_node.py" in one.line:
            os.kill(one.pid, signal.SIGKILL)
    assert lab.wait_end(run)["JobState"] == "FAILED"
    # Slurm ends them where it counts processes by cgroup; here Ray's agents notice by themselves that their raylet is gone.
    lab.wait(lambda: not lab.processes(run), run)
    assert not [*(run / "state").glob("ray-token*")]
    assert folders_of(run)
    write(lab, LOOK)
    after = lab.run("--no-container")
    assert after.done.returncode == 0, said(after.folder)[-5000:]
    assert left(lab, after.folder) == []
    assert folders_of(run) == []


def test_the_example_is_preempted_and_resumed_to_the_same_loss(lab: Lab) -> None:
    job = (REPO / "examples" / "ray" / "job.toml").read_text(encoding="utf-8").replace('image = "yours"', "")
    job = job.replace('script = "train.py"', f'script = "program.py"\npython = "{PYTHON}"\nseed = 3')
    text = f"{job.replace('2000', '1500')}\n[preflight]\nfree_disk_gb = 0\n"
    (lab.project / "job.toml").write_text(text, encoding="utf-8")
    program = (REPO / "examples" / "ray" / "train.py").read_text(encoding="utf-8")
    (lab.project / "program.py").write_text(program, encoding="utf-8")
    losses = {}
    for interrupted in (True, False):
        run = lab.submit("--no-container")
        if interrupted:
            lab.wait(lambda run=run: "step 20:" in said(run), run)  # type: ignore[misc]
            lab.slurm(
                "sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"
            )
        ended = lab.wait_end(run)
        assert ended["JobState"] == "COMPLETED", said(run)[-5000:]
        assert (ended["Restarts"] == "1") is interrupted, said(run)[-5000:]
        assert ("stopped after step" in said(run)) is interrupted
        (losses[interrupted],) = set(re.findall(r"final loss (\S+) after step 1500", said(run)))
    assert losses[True] == losses[False]
