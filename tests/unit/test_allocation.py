"""kit.allocation's sums: sbatch's texts of time and memory, shares of a node, and what is just allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.allocation import Allocation, kilobytes, minutes
from kit.errors import ConfigError, Fault
from kit.planning.sbatch_header import header
from tests.support import plan_of, write_job

CLUSTER = """
[node]
cpus = 64
gpus = 8
memory = "512G"
[qos.tight]
account = "a"
max_nodes = 4
max_gpus_per_node = 6
cpus_per_node = 48
memory = "128G"
time = "01:00:00"
[qos.free]
account = "a"
[qos.whole]
account = "a"
cpus_per_node = 64
"""
JOB = 'name = "digits"\nlauncher = "ddp"\nscript = "own.py"\n'  # whose batch the kit knows nothing of


def allocated(folder: Path, *overrides: str, cluster: str = CLUSTER) -> Allocation:
    (folder / "clusters").mkdir(exist_ok=True)
    (folder / "clusters" / "own.toml").write_text(cluster)
    (folder / "own.py").touch()
    return plan_of(write_job(folder, JOB), cluster="own", overrides=overrides).allocation


def refused(folder: Path, *overrides: str) -> dict[str, Fault]:
    with pytest.raises(ConfigError) as caught:
        allocated(folder, *overrides)
    return {fault.key: fault for fault in caught.value.faults}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("90", 90),
        ("2:30", 2.5),
        ("1:02:30", 62.5),
        ("2-3", 3060),
        ("2-03:04", 3064),
        ("2-03:04:30", 3064.5),
        ("0", 0),
        ("1-0", 1440),
    ],
)
def test_a_time_in_minutes(text: str, found: float) -> None:
    assert minutes(text) == found


@pytest.mark.parametrize(
    ("text", "found"), [("3", 3072), ("3K", 3), ("3M", 3072), ("3G", 3 * 1024**2), ("3T", 3 * 1024**3), ("0", 0)]
)
def test_memory_in_kibibytes(text: str, found: int) -> None:
    assert kilobytes(text) == found


@pytest.mark.parametrize(
    ("gpus", "cpus", "why"),
    [
        (8, 64, "64 per node, all of them"),
        (4, 32, "32 per node, the share of 4 of 8 GPUs in 64 CPUs"),
        (1, 8, "8 per node, the share of 1 of 8 GPUs in 64 CPUs"),
        (0, 64, "64 per node, all of them"),
    ],
)
def test_a_part_of_the_gpus_brings_its_part_of_the_cpus(tmp_path: Path, gpus: int, cpus: int, why: str) -> None:
    made = allocated(tmp_path, f"resources.gpus_per_node={gpus}", "resources.nodes=3")
    ranks = max(1, gpus)
    assert (made.gpus_per_node, made.ranks_per_node, made.cpus_per_node) == (gpus, ranks, cpus)
    assert (made.cpus_per_rank, made.cpus_reason) == (cpus // ranks, why)
    assert made.world_size == 3 * ranks


def test_with_srun_each_rank_is_a_task_of_its_own(tmp_path: Path) -> None:
    made = allocated(tmp_path, "shape=srun", "resources.cpus_per_node=60")
    assert (made.tasks_per_node, made.cpus_per_task, made.cpus_per_node) == (8, 7, 56)
    assert made.cpus_reason == "60 per node, as asked"
    made = allocated(tmp_path, "shape=torchrun", "resources.cpus_per_node=60")
    assert (made.tasks_per_node, made.cpus_per_task, made.cpus_per_node) == (1, 60, 60)


@pytest.mark.parametrize(
    ("qos", "fits", "too_much"),
    [
        ("free", "resources.gpus_per_node=8", "resources.gpus_per_node=9"),
        ("free", "resources.cpus_per_node=64", "resources.cpus_per_node=65"),
        ("free", "resources.memory=512G", "resources.memory=513G"),
        ("tight", "resources.nodes=4", "resources.nodes=5"),
        ("tight", "resources.gpus_per_node=6", "resources.gpus_per_node=7"),
        ("tight", "resources.cpus_per_node=48", "resources.cpus_per_node=49"),
        ("tight", "resources.memory=128G", "resources.memory=131073M"),
        ("tight", "resources.time=60", "resources.time=60:01"),
    ],
)
def test_the_limit_itself_is_allowed(tmp_path: Path, qos: str, fits: str, too_much: str) -> None:
    qos_of_job = (f"qos={qos}", "resources.gpus_per_node=2") if "gpus" not in fits else (f"qos={qos}",)
    allocated(tmp_path, *qos_of_job, fits)
    assert list(refused(tmp_path, *qos_of_job, too_much)) == [too_much.partition("=")[0]]


def test_as_many_ranks_as_cpus_and_no_more(tmp_path: Path) -> None:
    assert allocated(tmp_path, "resources.ranks_per_node=64").cpus_per_rank == 1
    fault = refused(tmp_path, "resources.ranks_per_node=65")["resources.ranks_per_node"]
    assert fault.hint == "ranks_per_node = 64"


def test_what_is_beyond_the_row_and_the_node_is_said_once_by_the_row(tmp_path: Path) -> None:
    faults = refused(tmp_path, "qos=tight", "resources.gpus_per_node=9", "resources.memory=600G")
    assert list(faults) == ["resources.gpus_per_node", "resources.memory"]
    assert all("QOS 'tight' allows" in fault.problem for fault in faults.values())


@pytest.mark.parametrize(
    ("overrides", "said", "hint"),
    [
        (("resources.memory=0",), "0 asks for all memory of a node, more than QOS", 'memory = "128G"'),
        (("resources.time=0",), "0 asks for no time limit, more than QOS", 'time = "01:00:00"'),
        (("resources.time=2:00:00",), "2:00:00 is more than QOS", 'time = "01:00:00"'),
        (("resources.nodes=3", "retry.spares=2"), "3 with 2 spares is more than QOS", "nodes = 2"),
        (("resources.nodes=1", "retry.spares=4"), "1 with 4 spares is more than QOS", "[retry] spares = 0"),
    ],
)
def test_what_a_row_does_not_allow_is_said_with_what_it_does(
    tmp_path: Path, overrides: tuple[str, ...], said: str, hint: str
) -> None:
    (fault,) = refused(tmp_path, "qos=tight", "resources.gpus_per_node=2", *overrides).values()
    assert said in fault.problem
    assert fault.hint == hint


def test_an_exclusive_job_has_all_cpus(tmp_path: Path) -> None:
    (fault,) = refused(tmp_path, "qos=tight", "resources.gpus_per_node=2", "slurm.exclusive=true").values()
    assert "an exclusive job gets all 64 CPUs" in fault.problem
    for qos in ("free", "whole"):
        allocated(tmp_path, f"qos={qos}", "slurm.exclusive=true")


def test_the_share_of_a_gpu_is_a_cpu_at_least(tmp_path: Path) -> None:
    few = CLUSTER.replace("cpus = 64", "cpus = 4")
    assert allocated(tmp_path, "resources.gpus_per_node=1", cluster=few).cpus_per_node == 1


@pytest.mark.parametrize(
    ("gres", "overrides", "asks"),
    [
        ("gpus-per-node", (), ["--gpus-per-node=8"]),
        ("gpus-per-node", ("resources.gpu_type=a100",), ["--gpus-per-node=a100:8"]),
        ("gpus-per-node", ("resources.gres={nvme=1}",), ["--gpus-per-node=8", "--gres=nvme:1"]),
        ("gres:gpu", (), ["--gres=gpu:8"]),
        ("gres:gpu", ("slurm.extra=['--gres=nvme:1']",), ["--gres=gpu:8,nvme:1"]),
        (
            "gres:gpu",
            ("slurm.extra=['--gres=nvme:1,shard:2']", "resources.gres={disk='2T'}"),
            ["--gres=gpu:8,disk:2T,nvme:1,shard:2"],
        ),
        ("gres:gpu:h100", ("resources.gpus_per_node=4", "resources.gres={nvme=1}"), ["--gres=gpu:h100:4,nvme:1"]),
        ("gres:gpu:h100", ("resources.gpu_type=a100",), ["--gres=gpu:a100:8"]),
        ("none", ("slurm.extra=['--gres=nvme:1']",), ["--gres=nvme:1"]),
        ("gres:gpu", ("resources.gpus_per_node=0", "resources.gres={nvme=1}"), ["--gres=nvme:1"]),
    ],
)
def test_all_generic_resources_are_in_one_option(
    tmp_path: Path, gres: str, overrides: tuple[str, ...], asks: list[str]
) -> None:
    """Of two options --gres, sbatch takes the last alone: the job had a disk and no GPUs."""
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "own.toml").write_text(CLUSTER.replace("gpus = 8", f'gpus = 8\ngres = "{gres}"'))
    (tmp_path / "own.py").touch()
    plan = plan_of(write_job(tmp_path, JOB), cluster="own", overrides=overrides)
    for options in (header(plan.text_of("batch.sh")), plan.salloc_argv):
        assert [option for option in options if option.startswith(("--gres", "--gpus"))] == asks


@pytest.mark.parametrize("bb", ["--bb=capacity=100G", "--bbf=/home/me/bb.conf"])
def test_a_burst_buffer_is_passed_on(tmp_path: Path, bb: str) -> None:
    (tmp_path / "own.py").touch()
    assert bb in header(plan_of(write_job(tmp_path, JOB), overrides=(f"slurm.extra=['{bb}']",)).text_of("batch.sh"))
