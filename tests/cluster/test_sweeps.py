"""Sweeps, chains and dependencies on the real cluster: arrays, retries, results, links that a time limit cuts."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import shell
from kit.shell import Completed
from tests.cluster.lab import TIMEOUT_S, Lab
from tests.support import REPO

pytestmark = pytest.mark.cluster

# One task a point, in the container; the example at the end takes the cluster's own choice of runtime.
SWEEP = """
script = "program.py"
shape = "srun"
container.runtime = "bubblewrap"
[resources]
nodes = 1
gpus_per_node = 1
"""

# Writes a metric, and fails for two points until the job's folder holds a file named "fixed".
PROGRAM = """
import json, os, pathlib, sys
lr, seed = float(sys.argv[sys.argv.index("--lr") + 1]), int(os.environ["KIT_SEED"])
with open(os.environ["KIT_RUN_DIR"] + "/metrics.jsonl", "a") as sink:
    sink.write(json.dumps({"kind": "final", "loss": (lr - 0.01) ** 2 + seed / 100}) + "\\n")
print("lr", lr, "seed", seed, "attempt", os.environ["KIT_RESTART_COUNT"])
if lr == 0.1 and not pathlib.Path("fixed").exists():
    sys.exit(7)
"""


def sweep(lab: Lab, *options: str, check: bool = True) -> Completed:
    return lab.kit("sweep", "--cluster", lab.cluster.name, *options, check=check)


def folder_of(done: Completed) -> Path:
    return Path(done.stdout.splitlines()[-1])


def point(folder: Path, number: int) -> Path:
    return folder / "points" / f"{folder.name}.{number}"


def results(lab: Lab, folder: Path, *options: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(lab.kit("results", folder.name, "--json", *options).stdout)["points"]
    return found


def said_by_failed(done: Completed, folder: Path) -> str:
    """What a sweep said, and the logs of its points that ended with an error."""
    logs = [
        f"{log}:\n{log.read_text(errors='replace')}"
        for run in sorted((folder / "points").iterdir())
        if "exit code 0" not in (run / "logs" / "batch.log").read_text(errors="replace").rpartition("end of job")[2]
        for log in sorted((run / "logs").rglob("*.log"))
    ]
    return "\n".join([done.stderr, *logs])


def starts(run: Path) -> int:
    """How often the ranks of a run were started."""
    return (run / "state" / "events.jsonl").read_text().count('"event": "attempt"')


def jobs(run: Path) -> dict[str, object]:
    facts = json.loads((run / "manifest.json").read_text())
    return {name: facts[name] for name in ("job_id", "array_task", "links")}


@pytest.fixture
def clean(lab: Lab) -> Iterator[Lab]:
    yield lab
    (lab.project / "fixed").unlink(missing_ok=True)


def test_one_array_then_only_the_failed_points_again(clean: Lab) -> None:
    lab = clean
    lab.write(
        SWEEP + "[sweep]\nparallel = 3\nmetric = 'loss'\n[sweep.grid]\nargs.--lr = [0.01, 0.1]\nseed = [1, 2, 3]\n",
        PROGRAM,
    )
    done = sweep(lab, "--wait", check=False)
    folder = folder_of(done)
    assert done.returncode == 1
    assert "3 points failed: 3-5" in done.stderr
    assert {jobs(point(folder, n))["job_id"] for n in range(6)} == {jobs(point(folder, 0))["job_id"]}, "one array"
    assert [jobs(point(folder, n))["array_task"] for n in range(6)] == list(range(6))
    for number in range(6):
        log = (point(folder, number) / "logs" / "rank-0.log").read_text()
        assert f"lr {0.01 if number < 3 else 0.1} seed {number % 3 + 1} attempt 0" in log, "each task ran its own point"
    status = lab.status(point(folder, 4))
    assert (status["state"], status["exit_code"], status["job_id"]) == (
        "FAILED",
        7,
        f"{jobs(point(folder, 4))['job_id']}_4",
    )

    (lab.project / "fixed").touch()
    job = lab.project / "job.toml"
    job.write_text(job.read_text().replace("seed = [1, 2, 3]", "seed = [1, 2, 3, 4]"))
    again = sweep(lab, "--retry", "--wait", check=False)
    assert again.returncode == 0, said_by_failed(again, folder)
    assert folder_of(again) == folder
    assert [starts(point(folder, n)) for n in range(8)] == [1, 1, 1, 2, 2, 2, 1, 1], "three again, and two new ones"
    assert "attempt 1" in (point(folder, 3) / "logs" / "rank-0.log").read_text()
    assert "every point is done" in sweep(lab, "--retry").stderr

    rows = results(lab, folder)
    assert [row["state"] for row in rows] == ["COMPLETED"] * 8
    assert (rows[0]["lr"], rows[0]["seed"], rows[0]["loss"]) == (0.01, 1, 0.01), "the best first"
    assert "best: point 0 (lr=0.01 seed=1): loss 0.01" in lab.kit("results", folder.name).stdout
    listed = {run["run"] for run in json.loads(lab.kit("runs", "--json").stdout)}
    assert {point(folder, n).name for n in range(8)} <= listed


def test_arrays_are_split_and_a_point_can_be_cancelled(lab: Lab) -> None:
    name = f"{lab.cluster.name}-narrow"
    text = (lab.project / "clusters" / f"{lab.cluster.name}.toml").read_text()
    (lab.project / "clusters" / f"{name}.toml").write_text("max_array = 2\n" + text)
    link = lab.project / "xdg/kit/clusters" / name
    if not link.exists():
        link.symlink_to(lab.cluster.folder)
    lab.write(SWEEP + "[sweep.grid]\nseed = [1, 2, 3]\n", "import time\ntime.sleep(600)\n")
    folder = folder_of(lab.kit("sweep", "-c", name))
    runs = [point(folder, n) for n in range(3)]
    assert [jobs(run)["array_task"] for run in runs] == [0, 1, 0]
    assert len({jobs(run)["job_id"] for run in runs}) == 2
    lab.wait(lambda: all((run / "state" / "events.jsonl").exists() for run in runs), runs[0])
    lab.kit("cancel", runs[1].name)
    lab.wait(lambda: lab.status(runs[1])["state"] == "CANCELLED", runs[1])
    assert [lab.status(run)["state"] for run in (runs[0], runs[2])] == ["RUNNING", "RUNNING"]
    assert "2 points cancelled" in lab.kit("cancel", folder.name).stderr
    for run in runs:
        lab.wait_state(run, "CANCELLED")
        assert lab.settled(run) == []
    assert "0 points cancelled" in lab.kit("cancel", str(folder)).stderr


def test_a_sweep_is_cancelled_as_a_whole_waiting_points_too(lab: Lab) -> None:
    lab.write(SWEEP + "[sweep]\nparallel = 1\n[sweep.grid]\nseed = [1, 2, 3]\n", "import time\ntime.sleep(600)\n")
    folder = folder_of(sweep(lab))
    first = point(folder, 0)
    lab.wait(lambda: (first / "state" / "events.jsonl").exists() and starts(first) == 1, first)
    assert "3 points cancelled" in lab.kit("cancel", folder.name).stderr
    lab.wait(lambda: lab.status(first)["state"] == "CANCELLED", first)
    assert lab.settled(first) == []
    assert [row["state"] for row in results(lab, folder)] == ["CANCELLED"] * 3
    assert not any((point(folder, n) / "state" / "events.jsonl").exists() for n in (1, 2)), (
        "none took the first one's place"
    )


def test_a_bad_point_submits_nothing(lab: Lab) -> None:
    lab.write(SWEEP + "[sweep.grid]\nresources.gpus_per_node = [1, 9]\n", PROGRAM)
    before = (set((lab.project / "runs").glob("*")), lab.slurm("squeue", "--noheader", "--states=all"))
    done = sweep(lab, check=False)
    assert done.returncode == 3
    assert "point 1 (gpus_per_node=9): resources.gpus_per_node: 9 is more than a node of" in done.stderr
    assert (set((lab.project / "runs").glob("*")), lab.slurm("squeue", "--noheader", "--states=all")) == before


def test_what_slurm_refuses_leaves_no_folder(lab: Lab) -> None:
    lab.write(SWEEP + "[sweep.points.good]\nseed = 1\n[sweep.points.bad]\nslurm.partition = 'nowhere'\n", PROGRAM)
    before = (set((lab.project / "runs").glob("*")), lab.slurm("squeue", "--noheader", "--states=all"))
    done = sweep(lab, check=False)
    assert done.returncode == 6
    assert "invalid partition" in done.stderr.lower()
    assert (set((lab.project / "runs").glob("*")), lab.slurm("squeue", "--noheader", "--states=all")) == before


def test_a_job_that_fits_no_node_is_refused_before_a_folder_is_made(lab: Lab) -> None:
    """sbatch itself would take it and leave it in the queue for ever: `--test-only` does not."""
    lab.write('script = "program.py"\n', "pass\n")
    before = set((lab.project / "runs").glob("*"))
    done = lab.kit("submit", "-c", lab.cluster.name, "--set", "resources.nodes=9", check=False)
    assert done.returncode == 6
    assert "Requested node configuration is not available" in done.stderr
    assert set((lab.project / "runs").glob("*")) == before


def test_a_drained_node_is_no_reason_to_refuse(lab: Lab) -> None:
    lab.write('script = "program.py"\n', "pass\n")
    node = lab.cluster.nodes[0].name
    lab.slurm("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    try:
        run = lab.submit()
        assert lab.status(run)["state"] == "PENDING"
        lab.kit("cancel", run.name)
    finally:
        lab.slurm("scontrol", "update", f"NodeName={node}", "State=RESUME")
        lab.wait_nodes()


# A training that takes 65 s, a second a step, and saves and stops when it is asked to. The loss depends on every step before.
STEPS = 65
CHAINED = f"""
import json, os, pathlib, signal, sys, time
run = pathlib.Path(os.environ["KIT_RUN_DIR"])
saved, stopped = run / "checkpoints" / "state.json", run / "state" / "stopped.json"
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
stopped.unlink(missing_ok=True)
state = json.loads(saved.read_text()) if saved.exists() else {{"step": 0, "loss": 1.0}}
while state["step"] < {STEPS}:
    time.sleep(1)
    state = {{"step": state["step"] + 1, "loss": state["loss"] * 0.97 + 0.001 * (state["step"] % 7)}}
    if asked:
        saved.write_text(json.dumps(state))
        stopped.write_text("{{}}")
        sys.exit(138)
(run / "final.json").write_text(json.dumps(state))
"""


@pytest.mark.timeout(900)
def test_a_chain_that_time_limits_cut_ends_as_one_run_would(lab: Lab) -> None:
    """Slurm sends the lead signal at its own half-minute ticks, so a link has at most 30 s: 65 s need at least three."""
    lab.write(
        SWEEP + 'time = "00:01:00"\n[slurm]\nlead = 59\n[chain]\ntimes = 12\n',
        CHAINED,
    )
    run = lab.submit()
    links = jobs(run)["links"]
    assert isinstance(links, list)
    assert len(links) == 11
    lab.wait((run / "final.json").exists, run, seconds=800)
    loss = 1.0
    for step in range(STEPS):
        loss = loss * 0.97 + 0.001 * (step % 7)
    assert json.loads((run / "final.json").read_text()) == {"step": STEPS, "loss": loss}
    lab.wait(lambda: lab.status(run)["state"] == "COMPLETED", run)
    assert starts(run) >= 3
    lab.wait(lambda: not lab.slurm("squeue", "--noheader", f"--jobs={','.join(map(str, links))}").strip(), run)
    assert starts(run) < 12, "the links after the end were dropped, not run"


def test_a_chain_stops_when_the_program_fails_by_itself(lab: Lab) -> None:
    lab.write(SWEEP + "[chain]\ntimes = 4\n", "import sys\nsys.exit(3)\n")
    run = lab.submit()
    links = jobs(run)["links"]
    assert isinstance(links, list)
    lab.wait(lambda: not lab.slurm("squeue", "--noheader", f"--jobs={','.join(map(str, links))}").strip(), run)
    assert starts(run) == 1
    assert "ended with the program's own exit code 3" in (run / "logs" / "batch.log").read_text()


def test_cancelling_a_chain_cancels_every_link(lab: Lab) -> None:
    lab.write(SWEEP + "[chain]\ntimes = 3\n", "import time\ntime.sleep(600)\n")
    run = lab.submit()
    lab.wait((run / "state" / "attempts").exists, run)
    lab.kit("cancel", run.name)
    links = jobs(run)["links"]
    assert isinstance(links, list)
    states = f"--jobs={','.join(map(str, [jobs(run)['job_id'], *links]))}"
    lab.wait(
        lambda: set(lab.slurm("squeue", "--noheader", "--states=all", "-o", "%T", states).split()) == {"CANCELLED"}, run
    )
    assert starts(run) == 1


@pytest.mark.parametrize(
    ("code", "kind", "runs"), [(0, "ok", True), (3, "ok", False), (3, "notok", True), (3, "any", True)]
)
def test_after(lab: Lab, code: int, kind: str, runs: bool) -> None:
    lab.write(SWEEP, "import sys, time\nseconds, code = map(int, sys.argv[1:])\ntime.sleep(seconds)\nsys.exit(code)\n")
    first = lab.submit("--set", f'args=["8", "{code}"]')
    second = lab.submit("--set", 'args=["0", "0"]', "--after", f"{first.name}:{kind}")
    assert lab.status(second)["state"] == "PENDING"
    lab.wait(lambda: lab.status(second)["state"] not in {"PENDING", "RUNNING", "COMPLETING"}, second)
    assert lab.status(second)["state"] == ("COMPLETED" if runs else "CANCELLED")


def test_points_wait_for_the_points_of_another_sweep(lab: Lab) -> None:
    lab.write(SWEEP + "[sweep.grid]\nargs.--lr = [0.01, 0.1]\n", PROGRAM + "import time\ntime.sleep(4)\n")
    first = folder_of(sweep(lab))
    lab.write(SWEEP + "[sweep.grid]\nargs.--lr = [0.02, 0.03]\n")
    second = folder_of(sweep(lab, "--after", f"{first.name}:corr"))
    runs = [point(second, number) for number in range(2)]
    lab.wait(lambda: lab.status(runs[0])["state"] == "COMPLETED", runs[0])
    lab.wait(lambda: lab.status(runs[1])["reason"] == "DependencyNeverSatisfied", runs[1])
    assert lab.status(point(first, 1))["state"] == "FAILED", "and this is what it waits for"
    lab.kit("cancel", runs[1].name)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fewer", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_example_of_twelve_trainings(lab: Lab, fewer: bool, tmp_path: Path) -> None:
    """examples/sweep in the container; only its epochs are fewer, and outside `make slow` its points, four of the twelve."""
    job = lab.project / "sweep" / "job.toml"
    job.parent.mkdir(exist_ok=True)
    shutil.copy(REPO / "examples" / "sweep" / "job.toml", job)
    if fewer:
        job.write_text(job.read_text().replace("[3e-3, 1e-2, 3e-2]", "[3e-3, 3e-2]").replace(', "sgd"]', "]"))
    done = lab.kit("sweep", str(job), "-c", lab.cluster.name, "--set", 'args=["--epochs", "1"]')
    folder = folder_of(done)
    assert len(json.loads((folder / "sweep.json").read_text())["arrays"]) == 1
    end = time.monotonic() + 1500
    while {row["state"] for row in results(lab, folder)} & {"PENDING", "RUNNING", "COMPLETING"}:
        assert time.monotonic() < end
        time.sleep(5)
    plots = [tmp_path / f"plot.{kind}" for kind in ("png", "svg", "html")]
    files = [tmp_path / f"all.{kind}" for kind in ("csv", "json", "parquet")]
    options = [word for path in plots for word in ("--plot", str(path))] + [
        w for path in files for w in ("-o", str(path))
    ]
    rows = results(lab, folder, *options)
    assert [row["state"] for row in rows] == ["COMPLETED"] * (4 if fewer else 12)
    scores = [float(str(row["accuracy"])) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert {(row["optimizer"], row["seed"]) for row in rows} == {
        (o, s) for o in ("adamw", "sgd")[: 1 if fewer else 2] for s in (1, 2)
    }
    assert all(path.stat().st_size > 500 for path in (*plots, *files))


API = """
import kit
from kit import Job, plan, submit, sweep
options = {"name": "api", "launcher": "ddp", "script": "program.py", "shape": "srun", "container": {"runtime": "bubblewrap"},
           "resources": {"nodes": 1, "gpus_per_node": 1}}
planned = plan(Job(**options, args=("--lr", "0.01"), seed=3), cluster=CLUSTER)
first = submit(planned)
assert first.folder.name == planned.run_id
second = submit(Job(**options, args=("--lr", "0.02"), seed=3), cluster=CLUSTER, after=[first])
end = second.wait()
assert (end.state, end.exit_code) == ("COMPLETED", 0), end
assert first.metrics() == {"loss": 0.03}, first.metrics()
assert kit.status(first).state == kit.why(first).state == "COMPLETED"
assert [one.run for one in kit.list_runs()][-2:] == [first.folder.name, second.folder.name]
assert kit.cancel(first)[0].state == "COMPLETED"
many = sweep(Job(**options, sweep={"metric": "loss", "grid": {"args.--lr": [0.01, 0.1], "seed": [1, 2]}}), cluster=CLUSTER)
failed = many.wait()
best = many.results().best
print(len(many.runs), len(failed), best.values["args.--lr"], best.values["seed"], best.metrics["loss"])
"""


def test_the_python_api(lab: Lab) -> None:
    lab.write("", PROGRAM)
    (lab.project / "api.py").write_text(API.replace("CLUSTER", repr(lab.cluster.name)))
    env = {**os.environ, **lab.env}
    done = shell.run([sys.executable, "api.py"], cwd=lab.project, env=env, timeout=TIMEOUT_S)
    assert done.stdout == "4 2 0.01 1 0.01"


STAGES = """
[stages.evaluate]
after = ["convert"]
args = ["evaluate", "{stages.convert}/out"]
[stages.convert]
after = ["pretrain"]
args = ["convert", "{stages.pretrain}/out"]
[stages.pretrain]
args = ["pretrain"]
"""
STAGE = """
import os, pathlib, sys
read = [pathlib.Path(path).read_text() for path in sys.argv[2:]]
pathlib.Path(os.environ["KIT_RUN_DIR"], "out").write_text(" ".join([sys.argv[1], *read]))
if sys.argv[1] == "convert" and os.path.exists("broken"):
    sys.exit(4)
"""


def test_stages_follow_each_other_and_stop_at_the_first_that_fails(lab: Lab) -> None:
    lab.write(SWEEP + STAGES, STAGE)
    done = lab.kit("submit", "-c", lab.cluster.name, "--wait")
    pretrain, convert, evaluate = map(Path, done.stdout.split())
    assert (evaluate / "out").read_text() == "evaluate convert pretrain"
    (lab.project / "broken").touch()
    try:
        done = lab.kit("submit", "-c", lab.cluster.name, "--wait", check=False)
    finally:
        (lab.project / "broken").unlink()
    assert done.returncode == 4, "the code of the stage that failed"
    pretrain, convert, evaluate = map(Path, done.stdout.split())
    lab.wait(lambda: lab.status(evaluate)["state"] == "CANCELLED", evaluate)
    assert [lab.status(run)["state"] for run in (pretrain, convert)] == ["COMPLETED", "FAILED"]


def test_a_cluster_file_from_what_slurm_says(lab: Lab) -> None:
    """The same cluster, met as any other Slurm: its file is detected, and a job runs by it."""
    env = {"SLURM_CONF": str(lab.cluster.slurm_conf)}
    path = Path(lab.kit("cluster", "detect", "found", env=env).stdout.strip())
    try:
        text = path.read_text()
        for line in (
            "max_array = 1001",
            f"cpus = {lab.cluster.cpus_per_node}",
            "gpus = 4",
            'partition = "main"',
            "qos = false",
        ):
            assert line in text
        assert "the file exists already" in lab.kit("cluster", "detect", "found", env=env, check=False).stderr
        lab.write(SWEEP + "[sweep.grid]\nargs.--lr = [0.01]\n", PROGRAM)
        done = lab.kit("sweep", "-c", "found", "--wait", "--no-container", "--set", "container.runtime=bare", env=env)
        found = json.loads(lab.kit("results", folder_of(done).name, "--json", env=env).stdout)["points"]
        assert [(row["state"], row["lr"]) for row in found] == [("COMPLETED", 0.01)]
    finally:
        path.unlink()
