"""Chains, stages and what is waited for, as far as no Slurm is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import config
from kit.errors import ConfigError, UsageError
from kit.planning.sbatch_header import header
from kit.submission.prepare_run import prepare_job
from kit.workflow import stages
from kit.workflow.dependencies import After, parse, term
from kit.workflow.stages import PreparedStage
from tests.support import write_job

JOB = 'name = "llm"\nlauncher = "ddp"\nscript = "step.py"\nargs = ["--all"]\n[resources]\nnodes = 2\n'
CLUSTER = '[node]\ncpus = 8\ngpus = 4\n[container]\nruntime = "bubblewrap"\n'
IMAGE = "docker://reg.io#a@sha256:" + "0" * 64


@pytest.fixture(autouse=True)
def _project(tmp_path: Path) -> None:
    (tmp_path / "step.py").touch()
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "here.toml").write_text(CLUSTER)


def staged(folder: Path, text: str, *, containers: bool = True) -> tuple[PreparedStage, ...]:
    job = write_job(folder, f'image = "{IMAGE}"\ncontainer.runtime = "pyxis"\n{JOB}{text}')
    return stages.prepare_stages(config.read_job(job, cluster="here"), containers=containers)


def test_a_chain_has_a_script_for_its_later_links(tmp_path: Path) -> None:
    job = write_job(tmp_path, JOB + "[chain]\ntimes = 3\n")
    made = prepare_job(job, cluster="here", overrides=[], containers=False).plan
    link = made.text_of("link.sh")
    assert header(link) == header(made.text_of("batch.sh"))
    assert f"KIT_RUN_DIR={made.run_dir}" in link, "all links share the run folder"
    alone = prepare_job(write_job(tmp_path, JOB), cluster="here", overrides=[], containers=False).plan
    assert "link.sh" not in [file.name for file in alone.files]


def test_a_chain_holds_no_secrets(tmp_path: Path) -> None:
    job = write_job(tmp_path, JOB + "[chain]\ntimes = 3\n[secrets]\nenv = ['TOKEN']\n")
    with pytest.raises(ConfigError, match=r"(?s)chain: a chain cannot have secrets.*requeue = 10"):
        prepare_job(job, cluster="here", overrides=[], containers=False)


def test_stages_come_in_the_order_in_which_they_wait(tmp_path: Path) -> None:
    made = staged(
        tmp_path,
        "[stages.evaluate]\nafter = ['convert', 'pretrain:any']\nargs = ['{stages.convert}/out']\n"
        "[stages.convert]\nafter = ['pretrain']\nresources.nodes = 1\nenv.FROM = '{stages.pretrain}'\n[stages.pretrain]\n",
    )
    assert [stage.name for stage in made] == ["pretrain", "convert", "evaluate"]
    assert made[2].after == (After("convert", "ok"), After("pretrain", "any"))
    pretrain, convert, evaluate = (stage.prepared.plan for stage in made)
    assert [plan.job.name for plan in (pretrain, convert, evaluate)] == ["llm-pretrain", "llm-convert", "llm-evaluate"]
    assert [plan.allocation.nodes for plan in (pretrain, convert, evaluate)] == [2, 1, 2]
    assert (pretrain.job.args, evaluate.job.args) == (("--all",), ("/kit/stages/convert/out",))
    assert convert.job.env["FROM"] == "/kit/stages/pretrain"
    (mount,) = [mount for mount in convert.job.mounts if not isinstance(mount, str)]
    assert (mount.source, mount.target, mount.flags) == (str(pretrain.run_dir), "/kit/stages/pretrain", ("ro",))
    assert not pretrain.job.stages, "a stage's own job.toml is a single job"


def test_without_a_container_a_stage_sees_the_folder_itself(tmp_path: Path) -> None:
    text = "[stages.a]\n[stages.b]\nafter = ['a']\nargs = ['{stages.a}']\n"
    first, second = (stage.prepared.plan for stage in staged(tmp_path, text, containers=False))
    assert second.job.args == (str(first.run_dir),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[stages.a]\nafter = ['b']\n[stages.b]\nafter = ['a']\n", "the stages wait for each other: a -> b -> a"),
        ("[stages.train]\n[stages.b]\nafter = ['trian']\n", 'after = ["train"]'),
        ("[stages.a]\n[stages.b]\nargs = ['{stages.a}']\n", "a stage that this one does not wait for"),
        ("[stages.a]\nresources.nods = 1\n", "[stages.a]: resources.nods: [resources] has no such key"),
        ("[stages.a]\nafter = ['b:maybe']\n", ":ok, :any or :notok"),
    ],
)
def test_stages_that_cannot_be(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        staged(tmp_path, text)
    assert reason in str(caught.value)


def test_the_faults_of_all_stages_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        staged(tmp_path, "[stages.a]\nresources.nods = 1\n[stages.b]\nresources.gpus_per_node = 5\n")
    assert {fault.key for fault in caught.value.faults} == {"resources.nods", "resources.gpus_per_node"}


@pytest.mark.parametrize(
    ("text", "after"),
    [("run", After("run", "ok")), ("run:any", After("run", "any")), ("12_3:notok", After("12_3", "notok"))],
)
def test_after_is_a_name_and_how_it_ends(text: str, after: After) -> None:
    assert parse(text) == after


@pytest.mark.parametrize("text", ["", ":ok", "run:bad", "run:"])
def test_after_that_says_nothing(text: str) -> None:
    with pytest.raises(UsageError, match="not written as RUN"):
        parse(text)


@pytest.mark.parametrize(
    ("kind", "jobs", "wanted"),
    [
        ("ok", (5,), "afterok:5"),
        ("ok", (5, 6, 7), "afterok:5?afterok:6?afterok:7"),
        ("any", (5, 6, 7), "afterany:7"),
        ("notok", (5, 6), "afternotok:5:6"),
        ("ok", ("9_1",), "afterok:9_1"),
    ],
)
def test_a_chain_is_done_when_one_of_its_links_is(kind: str, jobs: tuple[int | str, ...], wanted: str) -> None:
    assert term(After("x", kind), jobs) == wanted
