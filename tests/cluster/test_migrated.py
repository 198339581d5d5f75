"""Three published sbatch scripts (of Megatron, torchtitan and prime-rl kind), written as job.toml and run on two nodes.

The golden cases `migrated-*` show the same keys as text; here Slurm starts them, and their programs write down what they see.
"""

from __future__ import annotations

import json
import venv
from collections import Counter
from typing import Any

import pytest

from tests.cluster.lab import Lab, Run

pytestmark = pytest.mark.cluster

# Of a package, so that `python -m` finds it by the working folder alone.
PROGRAM = """\
import json, os, sys
seen = {
    "argv": sys.argv[1:],
    "module": __spec__.name if __spec__ else None,
    "env": dict(os.environ),
}
path = os.path.join(os.environ["KIT_RUN_DIR"], f"seen-{os.environ['RANK']}.json")
with open(path, "x", encoding="utf-8") as file:
    json.dump(seen, file)
"""
HEAD = """\
[resources]
nodes = 2
gpus_per_node = 2
[preflight]
free_disk_gb = 0
"""


def migrated(lab: Lab, package: str, job: str, *options: str) -> tuple[Run, list[dict[str, Any]]]:
    """The run of a job whose module is `package`.train, and what each rank saw, in the order of ranks."""
    folder = lab.project / package
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(PROGRAM, encoding="utf-8")
    lab.write(f'module = "{package}.train"\nargs = ["--lr", "3e-4"]\n{job}{HEAD}')
    run = lab.run(*options)
    assert run.done.returncode == 0, run.log("batch") + run.log("once") + run.log("rank-0")
    seen = [json.loads((run.folder / f"seen-{rank}.json").read_text(encoding="utf-8")) for rank in range(4)]
    for rank, one in enumerate(seen):
        assert (one["module"], one["argv"]) == (f"{package}.train", ["--lr", "3e-4"])
        assert (one["env"]["RANK"], one["env"]["WORLD_SIZE"], one["env"]["LOCAL_RANK"]) == (
            str(rank),
            "4",
            str(rank % 2),
        )
    assert len({one["env"]["MASTER_PORT"] for one in seen}) == 1
    assert Counter(one["env"]["SLURMD_NODENAME"] for one in seen) == {node.name: 2 for node in lab.cluster.nodes}
    return run, seen


def test_a_script_of_megatron_kind(lab: Lab) -> None:
    """A task a rank with an MPI type and bindings, and the data set's index built once."""
    job = """\
python = "/usr/bin/python3"
[step]
mpi = "pmi2"
cpu_bind = "cores"
gpu_bind = "none"
gpus_per_task = 1
label = true
extra = ["--hint=nomultithread"]
[once]
lines = ["echo built on $SLURMD_NODENAME >>built"]
"""
    run, seen = migrated(lab, "megatron_like", job, "--no-container", "--set", "shape=srun")
    built = run.folder / "workspace" / "built"
    assert built.read_text() == f"built on {lab.cluster.nodes[0].name}\n"
    for one in seen:
        # pmi2 hands every task the socket of its stepd.
        assert "PMI_FD" in one["env"], sorted(one["env"])
        assert one["env"]["SLURM_CPU_BIND_TYPE"] == "mask_cpu:" or "cores" in one["env"]["SLURM_CPU_BIND"]


@pytest.mark.parametrize(
    ("step", "expected"),
    [("gpus_per_task = 1", ["0", "1"]), ('gpu_bind = "map_gpu:1,0"', ["1", "0"]), ("", ["0,1", "0,1"])],
    ids=["a-gpu-a-task", "the-other-way-round", "all-of-the-node"],
)
def test_a_rank_sees_the_gpus_that_its_step_asks_for(lab: Lab, step: str, expected: list[str]) -> None:
    """By Slurm's own binding, on GPUs that are only names: two of the four of each node."""
    job = f'python = "/usr/bin/python3"\n[step]\n{step}\n'
    _, seen = migrated(lab, "bound", job, "--no-container", "--set", "shape=srun")
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS"):
        assert [one["env"][name] for one in seen] == expected * 2, name


def test_a_script_of_torchtitan_kind(lab: Lab, runtime_of: Any) -> None:
    """torchrun on both nodes with c10d, in a container; only rank 0's output is shown, all of it is written."""
    job = """\
shape = "torchrun"
rendezvous = "c10d"
[torchrun]
local_ranks_filter = [0]
tee = "3"
max_restarts = 0
log_dir = "/kit/run/logs/torchrun"
[step]
cpu_bind = "none"
"""
    run, seen = migrated(lab, "torchtitan_like", job, *runtime_of("bubblewrap"))
    assert {one["env"]["TORCHELASTIC_MAX_RESTARTS"] for one in seen} == {"0"}
    assert list((run.folder / "logs" / "torchrun").rglob("stdout.log"))


def test_a_script_of_prime_rl_kind(lab: Lab) -> None:
    """No container: every task activates a virtual environment, into which a line that runs once has installed torchrun."""
    job = """\
shape = "torchrun"
python = "python3"
setup = ["source made/bin/activate", "ulimit -n 65536 || true"]
[once]
container = false
lines = ["cp torchrun.py $VIRTUAL_ENV/bin/torchrun", "chmod +x $VIRTUAL_ENV/bin/torchrun"]
"""
    venv.create(lab.project / "made", with_pip=False)
    (lab.project / "torchrun.py").write_text(TORCHRUN, encoding="utf-8")
    _, seen = migrated(lab, "prime_rl_like", job, "--no-container")
    for one in seen:
        assert one["env"]["VIRTUAL_ENV"] == str(lab.project / "made")
        assert one["env"]["PATH"].startswith(str(lab.project / "made" / "bin"))


def test_a_script_that_loads_a_module(lab: Lab) -> None:
    """By the function that the submitter's shell exports, as under plain sbatch, in the lines of both kinds."""
    lab.write(
        """\
command = ["bash", "-c", "echo rank sees $LOADED and $(type -t module)"]
shape = "srun"
setup = ["module load cuda/12.4"]
[once]
lines = ["module load gcc/13", 'echo "once with $LOADED"']
"""
    )
    function = '() {  export LOADED="$2 of $MODULEPATH"\n}'
    run = lab.run("--no-container", env={"BASH_FUNC_module%%": function, "MODULEPATH": "/site/modules"})
    assert run.done.returncode == 0, run.log("batch") + run.log("once")
    assert "once with gcc/13 of /site/modules" in run.log("once")
    assert "rank sees cuda/12.4 of /site/modules and function" in run.log("rank-0")


def test_a_script_that_stages_data_and_copies_results(lab: Lab) -> None:
    """Each node gets its copy before the ranks; the results are copied although a rank failed."""
    lab.write(
        """\
command = ["bash", "fails_last.sh"]
shape = "srun"
[per_node]
lines = ["echo copied to $SLURMD_NODENAME >$KIT_RUN_DIR/data-$SLURMD_NODENAME"]
[after]
lines = ["echo the run ended with $KIT_EXIT_CODE, $(ls $KIT_RUN_DIR/data-* | wc -l) copies"]
[resources]
nodes = 2
ranks_per_node = 1
"""
    )
    # Rank 1 fails when rank 0 is done: who fails first ends the others, and rank 0 may begin later than rank 1 on a busy machine.
    (lab.project / "fails_last.sh").write_text(
        """\
cat "${KIT_RUN_DIR}/data-${SLURMD_NODENAME}"
((RANK == 1)) || { : >"${KIT_RUN_DIR}/rank-0-is-done"; exit 0; }
until [[ -e ${KIT_RUN_DIR}/rank-0-is-done ]]; do sleep 0.1; done
exit 9
""",
        encoding="utf-8",
    )
    run = lab.run("--no-container")
    assert run.done.returncode == 9, run.log("batch")
    for rank, node in enumerate(lab.cluster.nodes[:2]):
        assert f"copied to {node.name}" in run.log(f"rank-{rank}")
    assert run.log("after").strip() == "the run ended with 9, 2 copies"


# torchrun as far as this needs it: no torch is outside the container.
TORCHRUN = """\
#!/usr/bin/python3
import os, subprocess, sys
given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
command = sys.argv[sys.argv.index("--no-python") + 1:]
node, each, nodes = int(given["node-rank"]), int(given["nproc-per-node"]), int(given["nnodes"])
started = []
for local in range(each):
    own = {"RANK": node * each + local, "LOCAL_RANK": local, "WORLD_SIZE": nodes * each, "GROUP_RANK": node}
    started.append(subprocess.Popen(command, env={**os.environ, **{name: str(value) for name, value in own.items()}}))
sys.exit(max(one.wait() for one in started))
"""
