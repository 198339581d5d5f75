"""`kit render --plain`: its file under plain sbatch, in each runtime that it has a form for."""

from __future__ import annotations

import json

import pytest

from tests.cluster.lab import Lab

pytestmark = pytest.mark.cluster

PROGRAM = """
import json, os, pathlib, signal, sys, time
folder, rank = pathlib.Path.cwd(), os.environ["RANK"]
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "ODD")
(folder / f"saw-{rank}.json").write_text(json.dumps([sys.argv[1:], {name: os.environ[name] for name in names}]))
def save(number, _frame):
    (folder / f"saved-{rank}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
if "--wait" in sys.argv:
    time.sleep(300)
sys.exit(3 if "--fail" in sys.argv else 0)
"""
ODD = """a "b" $HOME 'c' , ü"""
JOB = f"""script = "program.py"
args = ["--text", "a  $b"]
[env]
ODD = {json.dumps(ODD)}
[resources]
nodes = 2
gpus_per_node = 2
"""


@pytest.mark.parametrize("shape", ["srun", "torchrun"])
def test_it_trains_and_ends_as_the_program_does(lab: Lab, runtime: str, shape: str) -> None:
    if runtime in {"bubblewrap", "enroot"}:
        pytest.skip(f"{runtime} has no plain form")
    if (runtime, shape) == ("bare", "torchrun"):
        pytest.skip("torchrun is in the image")
    for old in lab.project.glob("sa*-*"):
        old.unlink()
    lab.write(f'shape = "{shape}"\n{JOB}', PROGRAM)
    options = ["--no-container"] if runtime == "bare" else ["--set", f"container.runtime={runtime}"]
    lab.kit("render", "--plain", "--output", ".", "--cluster", lab.cluster.name, *options)
    lab.slurm("sbatch", "--wait", str(lab.project / "test.sbatch"))
    found = [json.loads((lab.project / f"saw-{rank}.json").read_text()) for rank in range(4)]
    assert [words for words, _ in found] == [["--text", "a  $b"]] * 4
    places = [
        tuple(int(env[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"))
        for _, env in found
    ]
    assert places == [(0, 4, 0, 2, 0), (1, 4, 1, 2, 0), (2, 4, 0, 2, 1), (3, 4, 1, 2, 1)]
    assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for _, env in found}) == 1
    assert {env["ODD"] for _, env in found} == {ODD}


def test_a_failed_rank_fails_the_job_and_a_warned_one_saves(lab: Lab) -> None:
    lab.write(JOB.replace('"a  $b"', '"--fail"'), PROGRAM)
    options = ["--no-container", "--cluster", lab.cluster.name, "--set", "shape=srun", "--output", "."]
    lab.kit("render", "--plain", *options)
    number = lab.slurm("sbatch", "--parsable", "--wait", str(lab.project / "test.sbatch"), check=False).strip()
    # srun returns the highest code: 143 of a rank that it ended after the one with 3.
    assert "JobState=FAILED" in lab.slurm("scontrol", "show", "job", number)
    lab.write(JOB.replace('"a  $b"', '"--wait"'), PROGRAM)
    lab.kit("render", "--plain", *options)
    number = lab.slurm("sbatch", "--parsable", str(lab.project / "test.sbatch")).strip()
    lab.wait(lambda: "RUNNING" in lab.slurm("squeue", "-h", "-j", number, "-o", "%T"), lab.project)
    for old in lab.project.glob("saw-*"):
        old.unlink()
    lab.wait(
        lambda: (
            len([*lab.project.glob("saw-*")]) == 4
            or "RUNNING" not in lab.slurm("squeue", "-h", "-j", number, "-o", "%T")
        ),
        lab.project,
        seconds=20,
    )
    lab.slurm("scancel", "--batch", "--signal=USR1", number)
    lab.wait(lambda: "COMPLETED" in lab.slurm("scontrol", "show", "job", number), lab.project)
    assert {path.name for path in lab.project.glob("saved-*")} == {f"saved-{rank}" for rank in range(4)}
