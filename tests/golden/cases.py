"""The golden cases: what a plan's generated scripts are, whole text. `make golden` rewrites them; a test never does.

python -m tests.golden.cases     # rewrite all
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from kit import config
from kit.frameworks.titan_file import TitanFile
from kit.planning.plan import Plan, PlanFile, plan
from kit.submission import single_sbatch_file
from kit.submission.single_sbatch_file import Asked
from tests.support import REPO, make_lock, make_site

# Only these three hold anything generated; the rest of a run folder is copied as it is.
GENERATED = ("batch.sh", "worker.sh", "program.sh")
SINGLE = "single.sh"
FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job on one cluster."""

    name: str
    cluster: str
    example: str = "ddp"
    overrides: tuple[str, ...] = ()
    pyxis: bool = False
    containers: bool = True


# The example's own batch would not do for 128 ranks.
BATCH = 'args=["--batch-size", "128"]'
CASES = (
    Case(name="local-bubblewrap-torchrun", cluster="local"),
    Case(name="local-bubblewrap-srun", cluster="local", example="ddp-srun"),
    Case(
        name="local-warm",
        cluster="local",
        example="ddp-srun",
        overrides=(
            'retry.warm=["torch", "torch.distributed"]',
            "retry.in_allocation=3",
            "retry.spares=1",
            "checkpoint.memory_every=10",
        ),
    ),
    Case(
        name="local-warm-torchrun",
        cluster="local",
        overrides=('retry.warm=["torch"]', "retry.keep=true", "retry.in_allocation=3"),
    ),
    Case(name="local-pyxis", cluster="local", pyxis=True),
    Case(name="local-bare", cluster="local", containers=False),
    Case(
        name="local-image-chain",
        cluster="local",
        overrides=('image={name="train-cpu", stage="chain"}', "retry.spares=1"),
    ),
    Case(name="pod-pyxis", cluster="pod", overrides=('mounts=["data", "scratch"]', "resources.gpus_per_node=8")),
    Case(
        name="aws-efa",
        cluster="aws-efa",
        overrides=("resources.nodes=16", "resources.gpus_per_node=8", "debug=true", BATCH),
    ),
    Case(
        name="infiniband-qos-high",
        cluster="infiniband",
        overrides=(
            "qos=high",
            "resources.nodes=8",
            "slurm.requeue=true",
            "slurm.output=/lustre/{user}/logs/%x-%4j.out",
        ),
    ),
    Case(
        name="local-roles",
        cluster="local",
        pyxis=True,
        overrides=(
            "launcher=roles",
            "args=[]",
            "resources.nodes=3",
            'roles.server={command=["serve", "--port", "{server.port.http}"], ports=["http"], policy="service", restart=2, '
            'ready={http="http", path="/health"}}',
            'roles.trainer={script="train.py", shape="torchrun", nodes=2, gpus=[0, 1], after=["server"]}',
        ),
    ),
    Case(
        name="local-ray",
        cluster="local",
        example="ray",
        containers=False,
        overrides=("roles.ray-worker.env.RAY_START_OPTIONS=--resources={}", "resources.memory=64G"),
    ),
    Case(
        name="infiniband-prime-rl",
        cluster="infiniband",
        example="prime-rl",
        containers=False,
    ),
    # What published sbatch scripts of three projects ask of srun and torchrun.
    Case(
        name="migrated-megatron",
        cluster="infiniband",
        overrides=(
            "shape=srun",
            'module="pretrain_gpt"',
            'step={mpi="pmix", cpu_bind="cores", gpu_bind="closest", gpus_per_task=1, label=true, extra=["--hint=nomultithread"]}',
            'once={lines=["make -C megatron/core/datasets"]}',
            "args=[]",
        ),
    ),
    Case(
        name="migrated-torchtitan",
        cluster="aws-efa",
        overrides=(
            "shape=torchrun",
            'module="torchtitan.train"',
            'torchrun={local_ranks_filter=[0], tee="3", max_restarts=0, log_dir="/kit/run/logs/torchrun"}',
            'rendezvous="c10d"',
            'step={cpu_bind="none", mem_per_gpu="64G"}',
            'resources.switches="1@00:30:00"',
            "args=[]",
        ),
    ),
    Case(
        name="migrated-prime-rl",
        cluster="infiniband",
        containers=False,
        overrides=(
            "shape=torchrun",
            'module="prime_rl.trainer.sft.train"',
            'setup=["source .venv/bin/activate", "ulimit -n 65536 || true"]',
            'once={lines=["uv sync --all-extras", "hf download Qwen/Qwen3-0.6B"], container=false}',
            "resources.segment=2",
            "args=[]",
        ),
    ),
    Case(
        name="infiniband-enroot", cluster="infiniband", overrides=("container.runtime=enroot", "monitor.enabled=false")
    ),
)


def planned(case: Case) -> Plan:
    """The plan of a case, with this machine's paths taken out."""
    job_file = REPO / "examples" / case.example / "job.toml"
    resolved = config.load_job(job_file, cluster=case.cluster, overrides=case.overrides)
    # The plan is pure: move the project to a place that every machine agrees on.
    here = Path("/home/ada/project")
    resolved = replace(resolved, project=here, job_dir=here / "examples" / case.example)
    return plan(resolved, make_lock(), make_site(pyxis=case.pyxis, containers=case.containers))


def scripts(case: Case) -> dict[str, str]:
    """The generated scripts of a case, by name."""
    made = planned(case)
    return {
        f.name: _lasting(f.text) for f in made.files if Path(f.name).name in GENERATED or f.name.startswith("configs/")
    }


def _lasting(script: str) -> str:
    """A script without the digest of bin/ and lib/, which changes with each of their files."""
    return _CODE.sub(r"\1DIGEST", script)


@dataclass(frozen=True, kw_only=True)
class Single:
    """A file that `kit generate` makes."""

    name: str
    cluster: str
    asked: Asked


LLAMA = Path("llama3.toml")
# What TorchTitan reads, as far as the kit does.
TITAN = TitanFile(
    path=LLAMA,
    text="[training]\nlocal_batch_size = 4\nseed = 7\n",
    table={"training": {"local_batch_size": 4, "seed": 7}, "parallelism": {"context_parallel_degree": 2}},
)
SINGLES = (
    Single(
        name="generate-ddp",
        cluster="infiniband",
        asked=Asked(
            config_file=LLAMA,
            qos="high",
            nodes=4,
            time="06:00:00",
            use_ddp=True,
            extra_args="--training.steps 1000 --job.description 'for $HOME'",
            job_name="llama",
            mail_user="ada@example.org",
            output="logs/%x-%j.out",
            error="logs/%x-%j.err",
        ),
    ),
    Single(name="generate-groups-in-nodes", cluster="pod", asked=Asked(config_file=LLAMA, replicas_per_node=2)),
    Single(
        name="generate-groups-over-nodes", cluster="pod", asked=Asked(config_file=LLAMA, nodes=4, nodes_per_replica=2)
    ),
)
MARK = "@JOB@"
# Files of the run folder that are the same in every run; a golden file holds their names alone.
_CODE = re.compile(r"^(readonly KIT_CODE=)[0-9a-f]{64}$", re.MULTILINE)
_SAME = re.compile(r"(    unpack \d+ (?:bin|lib|code)/\S+ <<'(\w+)'\n).*?^(?=\2$)", re.DOTALL | re.MULTILINE)


def planned_single(case: Single) -> Plan:
    """The plan that the file of a case holds."""
    here = Path("/home/ada/project")
    site = make_site(run_dir=Path(f"/shared/runs/llama-{MARK}"))
    resolved = single_sbatch_file.resolve(
        case.asked, TITAN, REPO / "kit generate", cluster=case.cluster, overrides=["image=train-cpu"]
    )
    resolved = replace(resolved, project=here, job_dir=here)
    allocation = plan(resolved, make_lock(), site).allocation
    return plan(single_sbatch_file.completed(resolved, allocation, case.asked, TITAN, release=None), make_lock(), site)


def single(case: Single) -> str:
    """The file of a case."""
    config_file = PlanFile(name=TITAN.name, text=TITAN.text)
    return single_sbatch_file.as_one_file(planned_single(case), [config_file], MARK)


def golden_single(case: Single) -> str:
    """The same without the text of the files that every run has."""
    return _lasting(_SAME.sub(r"\1", single(case)))


def write_all() -> None:
    """Rewrite every case; what is made no more is removed."""
    for folder in [path for path in FOLDER.iterdir() if path.is_dir() and path.name not in {"__pycache__", "messages"}]:
        shutil.rmtree(folder)
    for one in SINGLES:
        (FOLDER / one.name).mkdir(exist_ok=True)
        (FOLDER / one.name / SINGLE).write_text(golden_single(one), encoding="utf-8")
    for case in CASES:
        folder = FOLDER / case.name
        folder.mkdir(exist_ok=True)
        for name, text in scripts(case).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_all()
