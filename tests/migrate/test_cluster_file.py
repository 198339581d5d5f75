"""cluster.toml beside the migrated job: what the script says about its cluster, or what the project's file of it lacks."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from kit import config
from kit.config.toml_file import validate
from kit.errors import UsageError
from kit.migrate import cluster_file, write_job
from kit.migrate.report import Migration
from kit.planning import sbatch_header
from kit.schema.cluster import Cluster
from kit.submission.prepare_run import prepare_job
from tests.migrate.forms import FORMS
from tests.support import REPO

pytest.importorskip("tree_sitter_bash", reason="the extra 'migrate' is not installed")

_SITE = """\
#!/bin/bash
#SBATCH -p gpu -A team -q high
#SBATCH --nodes=2 --gres=gpu:8 --cpus-per-task=96 --mem=900G
export NCCL_IB_HCA=mlx5
srun --ntasks-per-node=1 torchrun --nnodes=2 --nproc_per_node=8 --rdzv_endpoint=$HEAD:1 train.py
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without a cluster file, of a user without one."""
    (tmp_path / ".git").mkdir()
    for name in ("KIT_CLUSTER", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    for program in ("train.py", "train", "solver", "worker.sh"):
        (tmp_path / program).touch()
    return tmp_path


def _migrate(project: Path, text: str, cluster: str | None = None) -> Migration:
    script = project / "job.sbatch"
    script.write_text(text)
    return write_job.migrate(script, output=None, cluster=cluster, force=True)


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.outcome != "refused"])
def test_each_job_fits_the_cluster_file_beside_it(name: str, project: Path) -> None:
    form = FORMS[name]
    for file, text in form.files.items():
        (project / file).parent.mkdir(exist_ok=True)
        (project / file).write_text(text)
    report = _migrate(project, form.script)
    validate(tomllib.loads((project / cluster_file.NAME).read_text()), Cluster, file=cluster_file.NAME)
    refused = [line for line in report.open if line.startswith("the job")]
    assert all("image" in line for line in refused), refused
    if not refused:
        assert report.outcome == form.outcome


def test_a_submit_needs_job_and_cluster_file_alone(project: Path) -> None:
    """With the row of the cluster's file, the job needs no [slurm]; GPUs are asked for as the script did."""
    _migrate(project, _SITE)
    (project / "clusters").mkdir()
    (project / cluster_file.NAME).rename(project / "clusters/pod.toml")
    job = project / "job.toml"
    # The page says that these lines may be removed.
    job.write_text(re.sub(r"\[slurm\]\n(\w+ = .*\n)+", "", job.read_text()))
    plan = prepare_job(job, cluster="pod", overrides=[], containers=False).plan
    header = sbatch_header.header(next(file.text for file in plan.files if file.name == "batch.sh"))
    asked = {"--partition=gpu", "--account=team", "--qos=high", "--gres=gpu:8", "--cpus-per-task=96", "--mem=900G"}
    assert asked <= set(header), header


def test_only_the_difference_to_a_known_file_is_written(project: Path) -> None:
    (project / "clusters").mkdir()
    (project / "clusters/pod.toml").write_text(
        '[node]\ncpus = 96\ngpus = 4\nmemory = "1T"\n[qos.gpu]\npartition = "gpu"\naccount = "other"\n'
    )
    report = _migrate(project, _SITE)
    assert tomllib.loads((project / cluster_file.NAME).read_text()) == {
        "node": {"gpus": 8, "gres": "gres:gpu"},
        "qos": {"gpu-2": {"partition": "gpu", "account": "team", "qos": "high"}},
    }
    assert any("clusters/pod.toml lacks" in line for line in report.next), report.next


def test_a_file_that_has_it_all_gets_no_difference(project: Path) -> None:
    (project / "clusters").mkdir()
    (project / "clusters/pod.toml").write_text(
        '[node]\ncpus = 96\ngpus = 8\ngres = "gres:gpu:h100"\n[qos.high]\npartition = "gpu"\naccount = "team"\n'
    )
    (project / cluster_file.NAME).write_text("of an earlier migration")
    report = _migrate(project, _SITE)
    assert not (project / cluster_file.NAME).exists()
    assert report.next == [f"kit submit {project / 'job.toml'}"]


def test_what_runs_once_is_not_in_both_files(project: Path) -> None:
    """Lines and variables of job.toml stay there: in cluster.toml they are comments, which are TOML once they are none."""
    _migrate(project, _SITE.replace("export", "module load cuda/12.4\nexport"))
    text = (project / cluster_file.NAME).read_text()
    assert not {"setup", "network"} & tomllib.loads(text).keys()
    moved = tomllib.loads(re.sub(r"^# (?=setup|network|\[network\]|    \"|\]|\w+ = )", "", text, flags=re.M))
    assert moved["setup"] == ["module load cuda/12.4"]
    assert moved["network"] == {"NCCL_IB_HCA": "mlx5"}


def test_a_cluster_file_of_the_user_is_kept(project: Path) -> None:
    (project / cluster_file.NAME).write_text("mine")
    script = project / "job.sbatch"
    script.write_text(_SITE)
    with pytest.raises(UsageError, match="exists already"):
        write_job.migrate(script, output=None, cluster=None, force=False)
    assert (project / cluster_file.NAME).read_text() == "mine"


def test_the_page_shows_the_cluster_file(project: Path) -> None:
    page = (REPO / "docs/guides/migrate.md").read_text(encoding="utf-8")
    script, shown = (
        re.search(rf'^```\w+ title="{name}"\n(.*?)^```$', page, re.M | re.S)
        for name in ("train.sbatch", "cluster.toml")
    )
    assert script
    assert shown
    (project / "train.sbatch").write_text(script[1])
    write_job.migrate(project / "train.sbatch", output=None, cluster=None, force=False)
    assert (project / cluster_file.NAME).read_text() == shown[1]


def test_json_has_its_keys(project: Path) -> None:
    report = _migrate(project, _SITE)
    assert json.loads(json.dumps(report.as_json()))["cluster"]["node"]["gres"] == "gres:gpu"
    assert config.load_model(project / cluster_file.NAME, Cluster).node.gpus == 8
