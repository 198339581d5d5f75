"""Options of srun and torchrun, programs as modules, lines that run once: from the job file to the scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.errors import ConfigError
from kit.planning.plan import Plan
from kit.render import MARK
from tests.support import make_site, plan_of, write_job

JOB = 'name = "digits"\nlauncher = "ddp"\nimage = "train-cpu"\n'


def made(tmp_path: Path, more: str) -> Plan:
    return plan_of(write_job(tmp_path, JOB + more))


def words(plan: Plan, name: str, file: str = "batch.sh") -> list[str]:
    """A bash array of one-word lines."""
    lines = plan.text_of(file).split(f"{name}=(\n")[1].split("\n)")[0].splitlines()
    return [line.strip().strip("'") for line in lines]


def test_options_of_srun_reach_the_step_of_the_ranks_alone(tmp_path: Path) -> None:
    step = (
        'mpi = "pmix"\ncpu_bind = "cores"\ngpu_bind = "closest"\ngpus_per_task = 1\nmem_per_gpu = "64G"\nlabel = true\n'
    )
    plan = made(tmp_path, f'[step]\n{step}extra = ["--hint=nomultithread"]\n')
    asked = {
        "--mpi=pmix",
        "--cpu-bind=cores",
        "--gpu-bind=closest",
        "--gpus-per-task=1",
        "--mem-per-gpu=64G",
        "--label",
    }
    assert {*asked, "--hint=nomultithread"} <= set(words(plan, "KIT_STEP_0_ARGV"))
    assert "--mpi=none" in words(plan, "KIT_PREFLIGHT_ARGV")


def test_without_options_the_step_is_as_it_was(tmp_path: Path) -> None:
    step = words(made(tmp_path, ""), "KIT_STEP_0_ARGV")
    assert "--mpi=none" in step
    assert "--wait=0" in step, "A14: a rank that has ended well says nothing of the others"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--mpi=pmix", "step.mpi"),
        ("--gpu-bind=none", "step.gpu_bind"),
        ("--ntasks=3", "resources.ranks_per_node"),
        ("--output=x", "set by the kit"),
        ("--container-image=x", "set by the kit"),
        ("-n 3", "not written as --option"),
    ],
)
def test_options_that_the_kit_sets_are_refused(tmp_path: Path, option: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(tmp_path, f'[step]\nextra = ["{option}"]\n')


@pytest.mark.parametrize(("option", "said"), [("--mpi=pmix", "step.mpi"), ("--wait=0", "set by the kit")])
def test_p2_options_without_effect_on_sbatch_are_refused(tmp_path: Path, option: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(tmp_path, f'[slurm]\nextra = ["{option}"]\n')


def test_torchruns_own_options(tmp_path: Path) -> None:
    plan = made(
        tmp_path, '[torchrun]\nmax_restarts = 2\nlocal_ranks_filter = [0, 1]\ntee = "3"\nlog_dir = "/data/my logs"\n'
    )
    asked = ["--local-ranks-filter=0,1", "--tee=3", "--log-dir=/data/my logs"]
    assert words(plan, "KIT_TORCHRUN_OPTIONS", "worker.sh") == asked
    assert "KIT_MAX_RESTARTS=2\n" in plan.text_of("worker.sh")


def test_a_program_that_is_a_module(tmp_path: Path) -> None:
    assert words(made(tmp_path, 'module = "package.main"\nargs = ["--lr"]\n'), "KIT_PROGRAM", "program.sh") == [
        *("python3", "-m", "package.main", "--lr")
    ]
    with pytest.raises(ConfigError, match="and this one has script and module"):
        made(tmp_path, 'module = "package.main"\nscript = "train.py"\n')


def test_lines_that_run_once(tmp_path: Path) -> None:
    plan = made(tmp_path, '[once]\nlines = ["make data", "touch $HOME/x"]\n')
    step = words(plan, "KIT_ONCE_ARGV")
    assert "--kill-on-bad-exit=1" in step
    assert any("bin/once.sh" in word for word in step)
    assert plan.text_of("once-lines.sh") == "make data\ntouch $HOME/x\n"
    outside = words(made(tmp_path, '[once]\nlines = ["hostname"]\ncontainer = false\n'), "KIT_ONCE_ARGV")
    assert not any("container" in word or "bubblewrap" in word for word in outside)
    assert "KIT_ONCE_ARGV" not in made(tmp_path, "").text_of("batch.sh")


def test_blocks_and_switches(tmp_path: Path) -> None:
    text = made(tmp_path, '[resources]\nnodes = 4\nsegment = 2\nswitches = "1@01:00:00"\n').text_of("batch.sh")
    assert "#SBATCH --segment=2\n" in text
    assert "#SBATCH --switches=1@01:00:00\n" in text


def test_a13_the_time_to_save_is_the_jobs(tmp_path: Path) -> None:
    assert "KIT_GRACE=120\n" in made(tmp_path, "").text_of("batch.sh"), "the lead"
    assert "KIT_GRACE=600\n" in made(tmp_path, "[slurm]\ngrace = 600\n").text_of("batch.sh")


def test_p2_the_cache_folder_is_made_whatever_is_switched_off(tmp_path: Path) -> None:
    """A container mounts it; without one the ranks make it themselves."""
    off = "[container]\nruntime = 'pyxis'\n[preflight]\nenabled = false\n"
    image = f"image = 'docker://ghcr.io/ada/train@sha256:{'0' * 64}'\n"
    contained = plan_of(write_job(tmp_path, 'name = "digits"\nlauncher = "ddp"\n' + image + off))
    assert [word for word in words(contained, "KIT_PREFLIGHT_ARGV") if word.startswith("cache=")]
    assert not [word for word in words(contained, "KIT_PREFLIGHT_ARGV") if word.startswith("skew=")]
    bare = plan_of(write_job(tmp_path, JOB + off), site=make_site(containers=False))
    assert "KIT_PREFLIGHT_ARGV" not in bare.text_of("batch.sh").partition(MARK)[0]
