"""The Python API does what the command line does, and `import kit` stays light."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import kit
from kit import Job, plan, shell, submit, sweep
from kit.answers.planned_job import as_planned
from kit.errors import ConfigError, PlanChangedError, RunError, UsageError
from kit.planning.plan import Plan
from kit.submission.prepare_run import prepare_job
from tests.support import write_job

JOB = (
    'name = "digits"\nlauncher = "ddp"\nscript = "train.py"\nargs = ["--lr", "0.1"]\nseed = 1\n[resources]\nnodes = 2\n'
)
CLUSTER = '[node]\ncpus = 8\ngpus = 4\n[container]\nruntime = "bubblewrap"\n[defaults.resources]\ntime = "00:07:00"\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "here.toml").write_text(CLUSTER)
    write_job(tmp_path, JOB)
    (tmp_path / "train.py").touch()
    return tmp_path


def same(one: Plan, other: Plan) -> bool:
    """Two plans but for the run's id, which holds the time."""
    files = tuple(replace(f, text=f.text.replace(other.run_id, one.run_id)) for f in other.files)
    return one.files == files and one.job == other.job and one.allocation == other.allocation


def test_a_job_in_python_is_the_job_of_a_file(project: Path) -> None:
    job = Job(name="digits", launcher="ddp", script="train.py", args=("--lr", "0.1"), seed=1, resources={"nodes": 2})
    made = plan(job, cluster="here", folder=project, containers=False)
    assert same(made, plan(project / "job.toml", cluster="here", containers=False))
    assert same(made, plan(str(project), cluster="here", containers=False)), "a folder stands for its job.toml"
    command_line = prepare_job(project / "job.toml", cluster="here", overrides=[], containers=False)
    assert same(made, command_line.plan)
    assert made.job.resources.time == "00:07:00", "what the Job leaves unset, the cluster fills in"
    assert (
        plan(job, cluster="here", folder=project, containers=False, overrides=["resources.nodes=3"]).allocation.nodes
        == 3
    )


def test_an_unchanged_plan_is_what_would_be_submitted(project: Path) -> None:
    made = plan(project, cluster="here", containers=False)
    assert as_planned(made) is made.prepared
    assert made.run_id == made.prepared.plan.run_id
    assert made.digest != plan(project, cluster="here", containers=False).digest, "each plan is a run of its own"


@pytest.mark.parametrize(
    ("file", "text", "changed"),
    [
        ("job.toml", f"{JOB}# a comment", "job file, workspace"),
        ("train.py", "print()", "workspace"),
        ("clusters/here.toml", CLUSTER.replace("cpus = 8", "cpus = 16"), "cluster.toml"),
    ],
)
def test_a_plan_is_refused_after_a_change(project: Path, file: str, text: str, changed: str) -> None:
    made = plan(project, cluster="here", containers=False)
    before = (project / file).read_text()
    (project / file).write_text(text)
    with pytest.raises(PlanChangedError, match=f"changed since {made.run_id} was planned: .*{changed}"):
        submit(made)
    assert not made.run_dir.exists(), "nothing is submitted"
    (project / file).write_text(before)
    assert as_planned(made) is made.prepared, "the same bytes are the same plan"


def test_a_plan_is_refused_a_second_time(project: Path) -> None:
    made = plan(project, cluster="here", containers=False)
    made.run_dir.mkdir(parents=True)
    with pytest.raises(RunError, match="this plan was submitted already"):
        submit(made)


def test_the_project_may_be_another_than_that_of_the_working_folder(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert kit.list_runs(project=project) == []
    with pytest.raises(RunError, match=f"nothing: no such run under {project}|no such run"):
        kit.status("nothing", project=project)
    run_dir = project / "runs" / "a-run"
    (run_dir / "logs").mkdir(parents=True)
    (run_dir / "manifest.json").write_text("{")
    (run_dir / "logs" / "rank-0.log").write_text("one\ntwo\n")
    found = kit.find_run("a-run", project=project)
    assert found.folder == run_dir
    assert [(one.source, one.line) for one in kit.logs(found, tail=1)] == [("rank-0", "two")]
    assert [(one.run, one.state) for one in kit.list_runs(project=project)] == [("a-run", "UNREADABLE")]


def test_a_loop_over_jobs(project: Path) -> None:
    job = Job(name="digits", launcher="ddp", script="train.py")
    plans = [
        plan(job.model_copy(update={"seed": seed}), cluster="here", folder=project, containers=False) for seed in (1, 2)
    ]
    assert [made.job.seed for made in plans] == [1, 2]


def test_faults_name_the_job_in_python(project: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"Job\(\.\.\.\): resources.gpus_per_node: 9 is more than a node of here has: 4 GPUs"
    ):
        plan(Job(name="a", launcher="ddp", resources={"gpus_per_node": 9}), cluster="here", folder=project)
    with pytest.raises(UsageError, match=r"it has a \[sweep\]"):
        submit(Job(name="a", launcher="ddp", sweep={"grid": {"seed": [1]}}), cluster="here", folder=project)
    with pytest.raises(UsageError, match="has no"):
        sweep(Job(name="a", launcher="ddp"), cluster="here", folder=project)


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys, kit; print(sorted(m for m in sys.modules if m.startswith(('kit.', 'pydantic', 'jinja2', 'typer'))))"
    assert shell.run([sys.executable, "-c", code]).stdout == "[]"


def test_names_of_the_package_are_those_of_the_api() -> None:
    code = "import kit.planning.plan, kit; print(kit.plan.__module__)"
    assert shell.run([sys.executable, "-c", code]).stdout == "kit.api"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        kit.nothing  # noqa: B018
