"""Variables of the submitter's shell: those that reach the ranks, and those that a submit names because they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import config
from kit.planning.complete_job import completed
from kit.slurm import client
from kit.submission.warnings import warn_of_variables
from tests.support import make_site, write_job

SHELL = {
    **{
        "NCCL_DEBUG": "INFO",
        "NCCL_IB_HCA": "mlx5_0",
        "NCCL_P2P_LEVEL": "SYS",
        "OMP_NUM_THREADS": "4",
        "CUDA_LAUNCH_BLOCKING": "1",
    },
    **{
        "WANDB_PROJECT": "p",
        "WANDB_API_KEY": "k",
        "HF_TOKEN": "t",
        "PATH": "/bin",
        "EDITOR": "vi",
        "SLURM_NCCL_X": "1",
    },
}
JOB = 'name = "x"\nlauncher = "srun"\nimage = "train-cpu"\nscript = "p.py"\n'
CLUSTER = "[node]\ncpus = 8\n"


def resolved(folder: Path, job: str = "", cluster: str = "") -> config.Resolved:
    (folder / "clusters").mkdir(exist_ok=True)
    (folder / "clusters" / "own.toml").write_text(cluster + CLUSTER)
    return config.load_job(write_job(folder, JOB + job), cluster="own")


def said(folder: Path, job: str = "", cluster: str = "") -> str:
    return str(warn_of_variables(resolved(folder, job, cluster), SHELL) or "")


def test_what_looks_meant_and_stays_behind_is_named_with_the_line_that_keeps_it(tmp_path: Path) -> None:
    """NCCL_DEBUG=INFO kit submit: dropped silently."""
    text = said(tmp_path)
    assert (
        "inherit: the ranks do not get these variables of your shell: CUDA_LAUNCH_BLOCKING, NCCL_DEBUG, NCCL_IB_HCA, "
        in text
    )
    assert (
        'try: inherit = ["CUDA_LAUNCH_BLOCKING", "NCCL_*", "OMP_NUM_THREADS", "WANDB_PROJECT"], or unset them' in text
    )
    assert not any(word in text for word in ("API_KEY", "HF_TOKEN", "EDITOR", "SLURM_"))


@pytest.mark.parametrize(
    ("job", "cluster"),
    [
        ('inherit = ["CUDA_LAUNCH_BLOCKING", "NCCL_*", "OMP_NUM_THREADS", "WANDB_PROJECT"]', ""),
        ('inherit = ["WANDB_*"]', 'inherit = ["NCCL_*", "OMP_*", "CUDA_*"]\n'),
        ('[env]\nCUDA_LAUNCH_BLOCKING = "0"\nOMP_NUM_THREADS = "1"\nWANDB_PROJECT = "q"', 'inherit = ["NCCL_*"]\n'),
    ],
    ids=["job", "cluster", "set"],
)
def test_what_the_job_or_the_cluster_keeps_or_sets_is_not_named(tmp_path: Path, job: str, cluster: str) -> None:
    assert said(tmp_path, job, cluster) == ""


def test_a_pattern_takes_no_secret_and_nothing_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    assert set(client.inherited(["NCCL_*", "WANDB_*", "SLURM_*", "EDITOR"])) == {
        *("NCCL_DEBUG", "NCCL_IB_HCA", "NCCL_P2P_LEVEL", "WANDB_PROJECT", "EDITOR"),
    }
    assert client.inherited(["HF_TOKEN"]) == {"HF_TOKEN": "t"}, "by its name it is meant"
    assert client.environment({}, inherit=["NCCL_*"])["NCCL_DEBUG"] == "INFO"


def test_the_clusters_list_is_added_to_the_jobs(tmp_path: Path) -> None:
    made = completed(
        resolved(tmp_path, 'inherit = ["MINE", "NCCL_*"]', 'inherit = ["NCCL_*", "HTTPS_PROXY"]\n'), make_site()
    )
    assert made.job.inherit == ("NCCL_*", "HTTPS_PROXY", "MINE")


def test_a_name_of_terraform_is_not_taken_for_tensorflows(tmp_path: Path) -> None:
    shell = {"TF_CLI_CONFIG_FILE": "/x", "TF_CPP_MIN_LOG_LEVEL": "2"}
    fault = warn_of_variables(resolved(tmp_path), shell)
    assert fault is not None and fault.problem.endswith("of your shell: TF_CPP_MIN_LOG_LEVEL")
