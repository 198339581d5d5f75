"""Contents of a manifest: the git repository (git itself is asked), the layer that set each key, and the inputs of the run."""

from __future__ import annotations

import hashlib
import json
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kit import config, shell
from kit.planning.plan import Plan
from kit.record import manifest
from kit.record.manifest import Git, Manifest, git_state
from kit.schema.cluster import Cluster
from kit.schema.image import ImageLock
from kit.schema.job import Job
from kit.schema.launcher import Launcher
from kit.schema.run_paths import RunPaths
from kit.submission import folder
from kit.sweeps import prepare as sweeps
from tests.support import plan_of, write_job


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A fresh repository with one file that nobody has added."""
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    (tmp_path / "job.toml").write_text('name = "a"\n')
    return tmp_path


def git(folder: Path, *words: str) -> str:
    return shell.run(["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]).stdout


def test_outside_a_repository_and_before_its_first_commit_there_is_no_commit(tmp_path: Path, repository: Path) -> None:
    assert git_state(Path("/")) is None
    assert git_state(repository) is None
    assert git_state(tmp_path / "none") is None


def test_commit_branch_and_what_is_dirty(repository: Path) -> None:
    git(repository, "add", "job.toml")
    git(repository, "commit", "--quiet", "--message=first")
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "untracked").touch()
    assert git_state(repository) == Git(commit=commit, branch="main", dirty=False)
    (repository / "job.toml").write_text('name = "b"\n')
    assert git_state(repository) == Git(commit=commit, branch="main", dirty=True)
    git(repository, "checkout", "--quiet", "--detach", "--force")
    assert git_state(repository) == Git(commit=commit, branch="(detached)", dirty=False)


CLUSTER = """
default_qos = "short"
[node]
cpus = 8
gpus = 2
[qos.short]
time = "00:10:00"
account = "research"
[defaults.slurm]
partition = "cpu"
[defaults.env]
A = "of the cluster"
B = "of the cluster"
"""
BASE = 'launcher = "ddp"\nargs = ["--epochs", "4"]\n[env]\nB = "of base.toml"\n[resources]\nnodes = 2\n'
JOB = 'extends = "base.toml"\nname = "d"\nimage = "train-cpu"\n[container]\nruntime = "bubblewrap"\n'


@pytest.fixture
def made(tmp_path: Path) -> Plan:
    """The plan of a job with a key of every layer."""
    job = write_job(tmp_path, JOB)
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "here.toml").write_text(CLUSTER)
    return plan_of(job, cluster="here", overrides=("resources.nodes=1", "env.C=3"))


def record_of(made: Plan) -> Manifest:
    return manifest.make_manifest(
        made, job_file=Path("job.toml"), user="ada", now=datetime.now(UTC), slurm_version="22.05"
    )


def test_who_set_each_key(made: Plan) -> None:
    """The layer that decides, not one that another overrides; what nobody set is the kit's own."""
    record = record_of(made)
    said = {key: Path(str(record.layer_of(key))).name for one in record.set_by for key in one.keys}
    assert said.pop("env.TORCH_NCCL_ASYNC_ERROR_HANDLING") == "launcher ddp"
    assert said == {
        "env.A": "cluster here",
        "slurm.partition": "cluster here",
        "qos": "qos short",
        "slurm.account": "qos short",
        "slurm.qos": "qos short",
        "resources.time": "qos short",
        "launcher": "base.toml",
        "args": "base.toml",
        "env.B": "base.toml",
        "name": "job.toml",
        "image": "job.toml",
        "container.runtime": "job.toml",
        "resources.nodes": "--set",
        "env.C": "--set",
    }
    assert record.layer_of("seed") is None
    assert tomllib.loads(made.text_of("job.toml"))["resources"]["nodes"] == 1


def test_values_of_a_point_are_a_layer(tmp_path: Path) -> None:
    job = write_job(
        tmp_path, 'name = "s"\nlauncher = "ddp"\n[container]\nruntime = "bare"\n[sweep.grid]\nseed = [1, 2]\n'
    )
    prepared = sweeps.prepare_sweep(job, cluster="local", overrides=[], containers=False)
    resolved = prepared.planned(prepared.points[0]).resolved
    (layer,) = (one for one in resolved.set_by if one.kind == "point")
    assert layer.keys == ("seed",)
    assert layer.name.endswith("job.toml [sweep]")


def test_a_run_folder_holds_what_it_was_made_from(made: Plan, tmp_path: Path) -> None:
    """Lock, cluster and launcher as they were: a month later, the project's own files are others."""
    run = tmp_path / "run"
    run.mkdir()
    record = record_of(made)
    folder.write_files(made, run)
    paths = RunPaths(run)
    assert set(record.records) == {"job.toml", "cluster.toml", "launcher.toml", "locks/train-cpu.lock"}
    for name, digest in record.records.items():
        assert hashlib.sha256((run / name).read_bytes()).hexdigest() == digest
    decided = made.decisions
    assert config.load_model(paths.locks / "train-cpu.lock", ImageLock) == decided.pin.lock
    assert config.load_model(paths.cluster, Cluster) == decided.resolved.cluster
    assert config.load_model(paths.launcher, Launcher) == decided.resolved.launcher
    assert config.load_model(paths.job, Job) == made.job


def test_a_manifest_without_these_records_is_read(made: Plan, tmp_path: Path) -> None:
    table = json.loads(record_of(made).model_dump_json())
    del table["set_by"], table["records"]
    (tmp_path / "manifest.json").write_text(json.dumps(table))
    old = manifest.read_manifest(tmp_path / "manifest.json")
    assert (old.set_by, old.records, old.layer_of("args")) == ((), {}, None)
