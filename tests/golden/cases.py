"""The golden cases: what a plan's generated scripts are, whole text. `make golden` rewrites them; a test never does.

python -m tests.golden.cases     # rewrite all
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from kit import config
from kit.plan import Plan, plan
from tests.support import REPO, make_lock, make_site

# Only these three hold anything generated; the rest of a run folder is copied as it is.
GENERATED = ("batch.sh", "worker.sh", "program.sh")


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
    Case(name="local-pyxis", cluster="local", pyxis=True),
    Case(name="local-bare", cluster="local", containers=False),
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
        name="infiniband-prime-rl",
        cluster="infiniband",
        example="prime-rl",
        containers=False,
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
    return {f.name: f.text for f in made.files if Path(f.name).name in GENERATED or f.name.startswith("configs/")}


def write_all() -> None:
    """Rewrite every case."""
    for case in CASES:
        folder = FOLDER / case.name
        folder.mkdir(exist_ok=True)
        for name, text in scripts(case).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_all()
