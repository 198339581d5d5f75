"""environment.sh: what of the host reaches the ranks, and by which name Slurm knows the job."""

from __future__ import annotations

import os

import pytest

from kit import shell
from tests import laid_out

LIB = laid_out.LIB / "environment.sh"


def bash(script: str, **env: str) -> list[str]:
    """What the script says, a line each."""
    text = f'set -euo pipefail\nlog::error() {{ echo "error: $*"; }}\nlog::info() {{ echo "info: $*"; }}\nsource {LIB}\n{script}\n'
    return shell.run(["bash", "-c", text], env={"PATH": os.environ["PATH"], **env}, check=False).stdout.splitlines()


LOOK = (
    "environment::require_allocation\n"
    'echo "${environment_share[*]:-}|${environment_job}|${environment_batch}|${SLURM_STEP_ID:-}"'
)


def test_outside_of_an_allocation_it_ends_with_2() -> None:
    said = bash("(environment::require_allocation) || echo code $?")
    assert said == ["error: this script runs under sbatch, or by hand inside an allocation of salloc", "code 2"]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"ENVIRONMENT": "BATCH"}, ["|7|1|"]),
        # Slurm 26.05 sets SLURM_STEP_ID in a batch script, too.
        ({"ENVIRONMENT": "BATCH", "SLURM_STEP_ID": "4294967291"}, ["|7|1|4294967291"]),
        ({}, ["|7||"]),
        ({"SLURM_STEP_ID": "0"}, ["info: interactive: step variables reset", "--overlap|7||"]),
        (
            {"ENVIRONMENT": "BATCH", "SLURM_PTY_PORT": "1"},
            ["info: interactive: step variables reset", "--overlap|7|1|"],
        ),
        ({"SLURM_SRUN_COMM_PORT": "1"}, ["info: interactive: step variables reset", "--overlap|7||"]),
        ({"ENVIRONMENT": "BATCH", "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_JOB_ID": "5"}, ["|5_3|1|"]),
    ],
)
def test_what_started_the_script(env: dict[str, str], said: list[str]) -> None:
    assert bash(LOOK, SLURM_JOB_ID="7", **env) == said


def test_an_interactive_steps_own_variables_go_and_the_jobs_stay() -> None:
    step = dict.fromkeys(("SLURM_STEP_ID", "SLURM_NTASKS", "SLURM_UMASK", "SLURM_LAUNCH_NODE_IPADDR"), "1")
    step["SLURM_PROCID"] = "0"
    script = "environment::require_allocation >/dev/null\ncompgen -e | grep ^SLURM_ | sort"
    assert bash(script, SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n1", **step) == ["SLURM_JOB_ID", "SLURM_JOB_NODELIST"]


@pytest.mark.parametrize(("task", "said"), [("0", ["|7||", "goes on"]), ("1", ["left 0"])])
def test_of_the_tasks_of_a_step_only_the_first_runs_the_job(task: str, said: list[str]) -> None:
    """`srun -N1 --ntasks-per-node=2 batch.sh` started two batch scripts in one run folder."""
    found = bash(f"({LOOK}\necho goes on)\necho left $?", SLURM_JOB_ID="7", SLURM_PROCID=task)
    assert [line for line in found if not line.startswith("info")][: len(said)] == said
    assert any("task 1 of the step" in line for line in found) == (task == "1")


def test_what_the_ranks_are_not_to_see_goes() -> None:
    stays = {
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "n1",
        "KIT_RUN_DIR": "/r",
        "CUDA_VISIBLE_DEVICES": "0",
        "HOME": "/h",
        "MINE": "1",
    }
    goes = dict.fromkeys(
        (
            *(
                "SLURM_SPANK_X",
                "PYXIS_X",
                "SBATCH_X",
                "SALLOC_X",
                "SLURM_CPU_BIND_TYPE",
                "SLURM_MEM_BIND",
                "SLURM_GPU_BIND",
            ),
            *("SLURM_EXACT", "SLURM_WAIT", "SLURM_NO_KILL", "SLURM_EXPORT_ENV", "NCCL_DEBUG", "PYTHONPATH", "OTHERS"),
        ),
        "1",
    )
    said = bash("environment::scrub MINE\ncompgen -e | sort", **stays, **goes)
    shells_own = {"OLDPWD", "PWD", "SHLVL", "_"}
    assert set(said) - shells_own == {"PATH", *stays}


def test_a_variable_that_cannot_be_unset_ends_nothing() -> None:
    # The last of all names: what becomes of it is what the function returns.
    assert bash("readonly zz\nenvironment::scrub\necho on", zz="1") == ["on"]


def test_a_pattern_keeps_what_begins_so_and_no_secret() -> None:
    given = {
        "NCCL_DEBUG": "INFO",
        "NCCL_IB_HCA": "a",
        "WANDB_PROJECT": "p",
        "WANDB_API_KEY": "k",
        "OMP_NUM_THREADS": "1",
        "MINE": "1",
    }
    script = "environment::scrub 'NCCL_*' 'WANDB_*' MINE\ncompgen -e | grep -E 'NCCL|WANDB|OMP|MINE' | sort"
    assert bash(script, **given) == ["MINE", "NCCL_DEBUG", "NCCL_IB_HCA", "WANDB_PROJECT"]


@pytest.mark.parametrize(
    ("runtime", "given", "said"),
    [
        ("pyxis", "xx_YY.UTF-8", "C.UTF-8"),
        ("enroot", "xx_YY.UTF-8", "C.UTF-8"),
        ("enroot", "", "none"),
        ("bubblewrap", "xx_YY.UTF-8", "xx_YY.UTF-8"),
        ("bare", "xx_YY.UTF-8", "xx_YY.UTF-8"),
    ],
)
def test_b12_enroot_gets_no_locale_that_a_node_may_lack(runtime: str, given: str, said: str) -> None:
    """2 of 13 starts ended in Enroot's own check of its configuration."""
    script = "environment::scrub 2>/dev/null\nbash -c 'echo \"${LC_ALL:-none}\"' 2>/dev/null"
    env = {"LC_ALL": given} if given else {}
    assert bash(script, KIT_RUNTIME=runtime, **env) == [said]
