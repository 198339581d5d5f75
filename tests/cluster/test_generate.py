"""`kit generate`: its file under plain sbatch, in the container. TorchTitan needs CUDA, so a package of its name trains here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.lab import Lab

pytestmark = pytest.mark.cluster

# Reads the configuration as TorchTitan does, and sums the ranks over a process group.
TRAIN = """
import json, os, sys, tomllib, urllib.request
import torch, torch.distributed as dist
words = sys.argv[1:]
config = tomllib.load(open(words[words.index("--job.config_file") + 1], "rb"))
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
if dist.get_rank() == 0:
    group = os.environ.get("REPLICA_GROUP_ID", "")
    found = {"sum": total.item(), "steps": config["training"]["steps"], "words": words, "world": dist.get_world_size()}
    if group:
        found["lighthouse"] = urllib.request.urlopen(os.environ["TORCHFT_LIGHTHOUSE"] + "/status", timeout=20).status
    json.dump(found, open(os.path.join(os.environ["KIT_RUN_DIR"], f"found{group}.json"), "w"))
dist.destroy_process_group()
"""


@pytest.fixture
def titan(lab: Lab) -> Lab:
    """A project with a checkout and a configuration."""
    package = lab.project / "torchtitan"
    package.mkdir(exist_ok=True)
    # By this file the launcher knows v0.2.0.
    (package / "config").mkdir(exist_ok=True)
    for name in ("__init__.py", "config/__init__.py", "config/job_config.py"):
        (package / name).touch()
    (package / "train.py").write_text(TRAIN)
    (lab.project / "llama.toml").write_text("[training]\nsteps = 3\nseed = 11\n")
    return lab


def test_one_file_trains_under_sbatch_again_and_again(titan: Lab) -> None:
    lab = titan
    options = ["--use-ddp", "--nodes", "2", "--gpus-per-node", "2", "--extra-args", "--job.description 'a  $b'"]
    options += ["--output", "titan/%x-%j.out", "--output-file", "llama.sh", "--cluster", lab.cluster.name]
    lab.kit("generate", "--config-file", "llama.toml", "--set", "container.runtime=bubblewrap", *options)
    numbers = [lab.slurm("sbatch", "--parsable", str(lab.project / "llama.sh")) for _ in range(2)]
    for number in numbers:
        run = lab.project / "runs" / f"llama-{number}"
        log = lab.project / "titan" / f"llama-{number}.out"
        lab.wait(run.exists, run)
        lab.wait_state(run, "COMPLETED", "FAILED")
        assert lab.status(run)["exit_code"] == 0, log.read_text()
        found = json.loads((run / "found.json").read_text())
        assert (found["sum"], found["steps"], found["world"]) == (6.0, 3, 4)
        assert found["words"][-2:] == ["--job.description", "a  $b"]
        assert "--training.seed=11" in found["words"]
        assert "--parallelism.data_parallel_replicate_degree=4" in found["words"]
        assert lab.status(run)["job_id"] == int(number)
        assert "world size 4" in lab.kit("logs", run.name).stdout
        assert lab.settled(run) == []
    assert not list(Path(lab.project / "runs").glob(".unpack*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "groups", "ranks"),
    [(["--num-ft-replicas-per-node", "2"], 4, 1), (["--nodes-per-replica", "2"], 1, 4)],
    ids=["in-nodes", "over-nodes"],
)
def test_replica_groups_under_sbatch(titan: Lab, options: list[str], groups: int, ranks: int) -> None:
    """Each group is a process group of its own, knows its number, and reaches the one lighthouse."""
    lab = titan
    argv = ["generate", "--config-file", "llama.toml", "--nodes", "2", "--gpus-per-node", "2", *options]
    argv += ["--output-file", "groups.sh", "--cluster", lab.cluster.name, "--set", "image=frameworks-cpu"]
    lab.kit(*argv, "--set", "container.runtime=bubblewrap")
    number = lab.slurm("sbatch", "--parsable", str(lab.project / "groups.sh"))
    run = lab.project / "runs" / f"llama-{number}"
    lab.wait(run.exists, run)
    lab.wait(lambda: lab.status(run)["state"] in {"COMPLETED", "FAILED"}, run)
    assert lab.status(run)["exit_code"] == 0, (lab.project / f"slurm-{number}.out").read_text()
    for group in range(groups):
        found = json.loads((run / f"found{group}.json").read_text())
        assert (found["world"], found["lighthouse"]) == (ranks, 200)
        told = {f"--fault_tolerance.replica_id={group}", f"--fault_tolerance.group_size={groups}"}
        assert told <= set(found["words"])
    assert lab.settled(run) == []
