"""A command that begins with another project's launcher: each task would start a training of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.errors import ConfigError
from kit.planning.plan import Plan
from kit.validation import toml
from tests.support import plan_of, write_job

JOB = 'name = "x"\nlauncher = "{launcher}"\nimage = "train-cpu"\n{program}\n[resources]\nnodes = {nodes}\ngpus_per_node = 2\n'
TWICE = {
    "torchrun": (["torchrun", "--nproc_per_node", "2", "p.py"], 'launcher = "torchrun" and script = "p.py"'),
    "module": (["python3", "-m", "torch.distributed.run", "p.py"], 'launcher = "torchrun" and script = "p.py"'),
    "old module": (["python3.11", "-u", "-m", "torch.distributed.launch", "p.py"], 'launcher = "torchrun"'),
    "path": (["/opt/conda/bin/torchrun", "--standalone", "-m", "pkg.train"], 'module = "pkg.train"'),
    "its file": (["python", "/opt/conda/bin/torchrun", "p.py"], 'launcher = "torchrun"'),
    "env": (["env", "-u", "A", "NCCL_DEBUG=INFO", "torchrun", "p.py"], 'launcher = "torchrun"'),
    "nice": (["nohup", "nice", "-n", "5", "torchrun", "p.py"], 'launcher = "torchrun"'),
    "numactl": (["numactl", "--cpunodebind=0", "-m", "0", "torchrun", "p.py"], 'launcher = "torchrun"'),
    "taskset": (["taskset", "-c", "0-3", "torchrun", "p.py"], 'launcher = "torchrun"'),
    "timeout": (["timeout", "-k", "5", "1h", "torchrun", "p.py"], 'launcher = "torchrun"'),
    "uv": (["uv", "run", "--with", "x", "torchrun", "p.py"], 'launcher = "torchrun"'),
    "shell": (["bash", "-lc", "cd src && exec torchrun p.py --lr 1"], 'launcher = "torchrun"'),
    "lines": (["sh", "-c", "export A=1\ntorchrun \\\n  p.py"], 'script = "p.py"'),
    "accelerate": (["accelerate", "launch", "--num_processes=2", "p.py"], 'launcher = "accelerate"'),
    "deepspeed": (["deepspeed", "--num_gpus", "2", "p.py"], 'launcher = "deepspeed"'),
    "mpirun": (["mpirun", "-np", "2", "./p"], 'launcher = "mpi" and in command only the words of the program'),
    "mpiexec": (["mpiexec.hydra", "-n", "2", "./p"], 'launcher = "mpi"'),
    "horovod": (["horovodrun", "-np", "2", "python", "p.py"], 'launcher = "mpi" and script = "p.py"'),
    "ray": (["ray", "start", "--head"], 'launcher = "ray"'),
}
MEANT = {
    "rendezvous": ["torchrun", "--nnodes=2", "--rdzv-endpoint=n1:29500", "p.py"],
    "old spelling": ["python3", "-m", "torch.distributed.run", "--rdzv_endpoint", "n1:29500", "p.py"],
    "master": ["torchrun", "--master_addr", "n1", "p.py"],
    "ranks of its own": ["bash", "-c", 'torchrun --nnodes=2 --node_rank "$SLURM_NODEID" p.py'],
    "one rank of it": ["bash", "-c", 'if [ "$SLURM_PROCID" = 0 ]; then mpirun ./p; fi'],
    "machines": ["accelerate", "launch", "--machine_rank", "0", "p.py"],
    "a worker": ["ray", "start", "--address=head:6379"],
    "no launcher": ["python3", "p.py", "torchrun"],
    "its own option": ["env", "A=mpirun", "./p", "--backend", "mpirun"],
    "another command of it": ["accelerate", "test"],
    "a broken line": ["bash", "-c", "torchrun 'p.py"],
}


def made(folder: Path, words: list[str], *, launcher: str = "srun", nodes: int = 2, more: str = "") -> Plan:
    program = f"command = {toml(words)}"
    return plan_of(write_job(folder, JOB.format(launcher=launcher, program=program, nodes=nodes) + more))


@pytest.mark.parametrize("name", TWICE)
def test_a_launcher_that_each_rank_would_start_is_refused(tmp_path: Path, name: str) -> None:
    words, hint = TWICE[name]
    with pytest.raises(ConfigError, match="this job starts it 4 times, once per rank: 4 separate trainings") as error:
        made(tmp_path, words)
    assert hint in str(error.value)


@pytest.mark.parametrize("name", MEANT)
def test_one_that_meets_the_others_or_is_no_launcher_is_accepted(tmp_path: Path, name: str) -> None:
    assert made(tmp_path, MEANT[name]).world_sizes == {"train": 4}


def test_environment_variables_of_torchrun_are_a_rendezvous(tmp_path: Path) -> None:
    assert made(tmp_path, ["torchrun", "p.py"], more='[env]\nPET_NODE_RANK = "0"\nPET_NNODES = "2"\n')


def test_a_module_is_looked_at_too(tmp_path: Path) -> None:
    job = JOB.format(launcher="srun", program='module = "torch.distributed.run"\nargs = ["p.py"]', nodes=2)
    with pytest.raises(ConfigError, match=r"module: torch\.distributed\.run starts ranks"):
        plan_of(write_job(tmp_path, job))


def test_torchrun_inside_torchrun(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'try: script = "p\.py"; or torchrun with'):
        made(tmp_path, ["torchrun", "p.py"], launcher="torchrun")


def test_one_process_may_start_a_launcher(tmp_path: Path) -> None:
    assert made(tmp_path, ["torchrun", "--nproc-per-node=2", "p.py"], launcher="python", nodes=1).roles[0].nodes == 1


@pytest.mark.parametrize("launcher", ["python", "srun"])
def test_srun_inside_a_step_waits_for_ever(tmp_path: Path, launcher: str) -> None:
    with pytest.raises(ConfigError, match="the ranks are processes of srun already"):
        made(tmp_path, ["srun", "python3", "p.py"], launcher=launcher, nodes=1)
    assert made(tmp_path, ["srun", "--overlap", "hostname"], launcher=launcher, nodes=1)


def test_a_role_of_several_ranks(tmp_path: Path) -> None:
    job = 'name = "x"\nlauncher = "roles"\nimage = "train-cpu"\n[roles.{name}]\nnodes = 2\ncommand = ["torchrun", "p.py"]\n{more}\n'
    with pytest.raises(ConfigError, match=r'roles.a.command.*\n.*shape = "torchrun" and script = "p.py"'):
        plan_of(write_job(tmp_path, job.format(name="a", more="")))
    # Servers are as many as they are.
    served = job.format(name="b", more='policy = "service"\n[roles.a]\ncommand = ["./main"]')
    assert plan_of(write_job(tmp_path, served)).world_sizes == {"a": 1}
