"""A job with GPUs in an image whose torch is built for CPUs: refused before submit, and never run on CPUs in silence."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kit import config
from kit.errors import ConfigError
from kit.planning.plan import Plan, plan
from kit.schema.image import Packages
from kit.submission.prepare_run import prepare_job
from tests.support import REPO, make_lock, make_site, write_job
from tests.unit.test_gpu_images import locked

JOB = 'name = "digits"\nlauncher = "{launcher}"\nimage = "train-cpu"\n{program}\n[resources]\nnodes = 2\ngpus_per_node = 2\n'
CPU = {"torch": "2.13.0+cpu"}
GPUS = "[node]\ncpus = 16\ngpus = 8\n{more}\n[container]\nruntime = 'bubblewrap'\n"


def planned(
    folder: Path,
    *,
    job: str = JOB.format(launcher="ddp", program=""),
    packages: dict[str, str] | None = None,
    more: str = "",
    overrides: tuple[str, ...] = (),
    containers: bool = True,
) -> Plan:
    """The plan on a cluster with 8 GPUs on each node."""
    (folder / "clusters").mkdir(exist_ok=True)
    (folder / "clusters" / "mine.toml").write_text(GPUS.format(more=more))
    resolved = config.load_job(write_job(folder, job), cluster="mine", overrides=overrides)
    lock = make_lock().model_copy(update={"packages": Packages(pip=CPU if packages is None else packages)})
    return plan(resolved, lock, make_site(containers=containers), role_locks={"tools": lock})


def advised(words: str) -> tuple[str, ...]:
    """What a hint says to give to --set."""
    return tuple(re.findall(r"--set (\S+)", words))


def refused(folder: Path, **given: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        planned(folder, **given)  # type: ignore[arg-type]
    return caught.value


def test_a_cpu_build_on_gpus_is_refused_and_its_advice_works(tmp_path: Path) -> None:
    (fault,) = refused(tmp_path).faults
    assert (fault.file, fault.key) == (str(tmp_path / "job.toml"), "image")
    assert fault.problem == (
        "'train-cpu' has torch 2.13.0+cpu, a build for CPUs, and the job asks for 2 GPUs on each node"
    )
    for_gpus, on_cpus = (advised(words) for words in fault.hint.split("; or "))
    made = planned(tmp_path, overrides=on_cpus)
    assert (made.allocation.gpus_per_node, made.allocation.world_size) == (0, 4)
    assert for_gpus == ("image=train-gpu",)
    made = planned(tmp_path, overrides=for_gpus, packages=locked("train-gpu"))
    assert (made.allocation.gpus_per_node, made.allocation.world_size) == (2, 4)


def test_the_kits_own_example_and_image_are_refused_on_a_cluster_with_gpus(tmp_path: Path) -> None:
    """The real lock of containers/train-cpu, as `kit render` reads it."""
    text = (REPO / "examples/ddp/job.toml").read_text()
    job = write_job(tmp_path, text)
    with pytest.raises(ConfigError, match=r"'train-cpu' has torch [0-9.]+\+cpu, a build for CPUs, and .* for 8 GPUs"):
        prepare_job(job, cluster="infiniband", overrides=["resources.gpus_per_node=8", 'args=["--batch-size", "64"]'])


@pytest.mark.parametrize(
    ("packages", "program"),
    [
        ({"torch": "2.13.0"}, ""),
        ({"torch": "2.13.0+cu130"}, ""),
        ({"torch": "2.13.0+rocm7.1"}, ""),
        ({}, ""),
        ({**CPU, "jax-cuda12-plugin": "0.8.0"}, 'command = ["./train"]'),
    ],
)
def test_an_image_that_can_use_gpus_is_taken(tmp_path: Path, packages: dict[str, str], program: str) -> None:
    launcher = "srun" if program else "ddp"
    made = planned(tmp_path, job=JOB.format(launcher=launcher, program=program), packages=packages)
    assert "KIT_DEVICE=cuda" in made.text_of("program.sh")


def test_other_gpu_packages_do_not_help_a_program_that_needs_torch(tmp_path: Path) -> None:
    assert refused(tmp_path, packages={**CPU, "jax-cuda12-plugin": "0.8.0"}).faults[0].key == "image"


@pytest.mark.parametrize(("more", "overrides"), [("placeholder_gpus = true", ()), ("", ("resources.gpus_per_node=0",))])
def test_ranks_that_get_no_gpu_may_use_cpus(tmp_path: Path, more: str, overrides: tuple[str, ...]) -> None:
    made = planned(tmp_path, more=more, overrides=overrides)
    assert "KIT_DEVICE" not in made.text_of("program.sh")


def test_the_embedded_cluster_has_placeholders_until_it_says_otherwise(tmp_path: Path) -> None:
    cluster = config.load_job(write_job(tmp_path, JOB.format(launcher="ddp", program="")), cluster="local").cluster
    assert (cluster.node.gpus > 0, cluster.computes_on_gpus) == (True, False)
    node = cluster.node.model_copy(update={"placeholder_gpus": False})
    assert cluster.model_copy(update={"node": node}).computes_on_gpus


def test_a_role_without_gpus_may_have_a_cpu_build(tmp_path: Path) -> None:
    roles = 'name = "x"\nlauncher = "roles"\nimage = "train-cpu"\n[resources]\ngpus_per_node = 2\n'
    roles += (
        '[roles.judge]\nimage = "tools"\ncommand = ["judge"]\n{gpus}\n[roles.train]\nnodes = 1\nscript = "train.py"\n'
    )
    faults = {fault.key: fault for fault in refused(tmp_path, job=roles.format(gpus="")).faults}
    assert faults.keys() == {"image", "roles.judge.image"}
    faults = {fault.key: fault for fault in refused(tmp_path, job=roles.format(gpus="gpus = []")).faults}
    assert faults.keys() == {"image"}
    assert "--set 'roles.train.gpus=[]'" in faults["image"].hint


def test_without_a_container_the_program_itself_refuses(tmp_path: Path) -> None:
    """Without a lock, the kit does not know which torch the image has, so it sets KIT_DEVICE=cuda."""
    made = planned(tmp_path, containers=False)
    assert "KIT_DEVICE=cuda" in made.text_of("program.sh")


def test_every_example_that_names_a_cpu_image_still_renders_on_cpus() -> None:
    for job in sorted((REPO / "examples").glob("*/job.toml")):
        resolved = config.load_job(job, cluster="local") if "cpu" in job.read_text().partition("[")[0] else None
        if resolved is None or resolved.job.sweep is not None:
            continue
        lock = make_lock().model_copy(
            update={
                "packages": Packages(pip={**CPU, **dict.fromkeys(resolved.launcher.required(resolved.job), "1")} | CPU)
            }
        )
        assert plan(replace(resolved, project=REPO), lock, make_site()).allocation.nodes, job
