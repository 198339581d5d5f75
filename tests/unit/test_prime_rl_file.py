"""A configuration for prime-rl's rl_slurm or sft_slurm in place of a job file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from kit import config
from kit.cli.program_words import as_overrides
from kit.config import prime_rl_file
from kit.errors import ConfigError
from kit.planning.plan import Plan, plan
from tests.support import make_site

RL = """\
job_name = "Sums_MoE"
output_dir = "outputs/sums"
num_train_nodes = 4
num_infer_nodes = 2
nodes_per_fsdp_group = 2
hf_hub_offline = true
max_steps = 50
seq_len = 2048
max_async_level = 1
[log]
level = "debug"
json_logging = true
[ckpt]
interval = 5
keep_interval = 10
[wandb]
project = "sums"
name = "first"
[weight_broadcast]
type = "nccl"
timeout = 60
[model]
name = "org/model"
[trainer.model]
impl = "custom"
[trainer.model.ac]
freq = 1
[orchestrator]
batch_size = 512
rollouts_per_example = 16
[orchestrator.sampling]
max_tokens = 1024
[[orchestrator.env]]
id = "sums"
args = { anything = 1 }
[inference.parallel]
tp = 4
dp = 2
"""
SFT = """\
job_name = "sums-sft"
output_dir = "/shared/outputs"
num_nodes = 2
gpus_per_node = 4
max_steps = 50
[model]
name = "org/model"
[model.compile]
[data]
type = "sft"
name = "org/chats"
batch_size = 128
seq_len = 8192
[ckpt]
"""


def made(folder: Path, text: str, *overrides: str) -> Plan:
    (folder / "theirs.toml").write_text(text)
    (folder / ".venv/bin").mkdir(parents=True, exist_ok=True)
    (folder / ".venv/bin/activate").touch()
    resolved = config.load_job(folder / "theirs.toml", cluster="infiniband", overrides=overrides, project=folder)
    return plan(resolved, None, make_site(containers=False))


def options(found: Plan, role: str) -> dict[str, Any]:
    return tomllib.loads(found.text_of(f"configs/{role}.toml"))


def test_an_rl_file_is_a_job_as_it_is(tmp_path: Path) -> None:
    found = made(tmp_path, RL)
    assert (found.job.name, found.allocation.nodes, found.allocation.gpus_per_node) == ("sums_moe", 6, 8)
    trainer, orchestrator, inference = (options(found, role) for role in ("trainer", "orchestrator", "inference"))
    run = str(make_site(containers=False).run_dir)
    assert trainer == {
        "model": {"name": "org/model", "impl": "custom", "seq_len": 2048, "dp_replicate": 2, "ac": {"freq": 1}},
        "tokenizer": {"name": "org/model"},
        "output_dir": f"{run}/outputs/sums",
        "max_steps": 50,
        "max_async_level": 1,
        "log": {"level": "debug", "json_logging": True},
        "ckpt": {"interval": 5, "keep_interval": 10},
        "wandb": {"project": "sums", "name": "first-trainer"},
        # Two servers of 2 x 4 GPUs.
        "weight_broadcast": {"type": "nccl", "timeout": 60, "inference_world_size": 16},
    }
    assert orchestrator == {
        "batch_size": 512,
        "rollouts_per_example": 16,
        "sampling": {"max_tokens": 1024},
        "env": [{"id": "sums", "args": {"anything": 1}}],
        "model": {"name": "org/model"},
        "seq_len": 2048,
        "max_steps": 50,
        "max_async_level": 1,
        "log": {"level": "debug", "json_logging": True},
        "ckpt": {"interval": 5, "keep_interval": 10},
        "wandb": {"project": "sums", "name": "first-orchestrator"},
        "weight_broadcast": {"type": "nccl", "timeout": 60},
        "num_train_workers": 32,
    }
    assert inference["parallel"] == {"tp": 4, "dp": 2}
    env = {placed.name: placed.role.env for placed in found.roles}
    assert all(one["HF_HUB_OFFLINE"] == "1" for one in env.values())
    assert f"source {tmp_path}/.venv/bin/activate" in found.text_of("setup.sh")


def test_an_sft_file_is_a_job_as_it_is(tmp_path: Path) -> None:
    found = made(tmp_path, SFT)
    assert (found.job.name, found.allocation.nodes, found.allocation.gpus_per_node) == ("sums-sft", 2, 4)
    assert options(found, "trainer") == {
        "model": {"name": "org/model", "compile": {}},
        "data": {"type": "sft", "name": "org/chats", "batch_size": 128, "seq_len": 8192},
        "output_dir": "/shared/outputs",
        "max_steps": 50,
        "ckpt": {},
    }


def test_overrides_have_the_names_of_the_file_or_of_the_kit(tmp_path: Path) -> None:
    words = ("max_steps=7", "trainer.model.impl=hf", "rl.orchestrator.batch_size=64", "resources.time=00:10:00")
    found = made(tmp_path, RL + '[slurm]\nqos = "high"\n', *words, "hf_hub_offline=false")
    assert (options(found, "trainer")["model"]["impl"], options(found, "orchestrator")["max_steps"]) == ("hf", 7)
    assert options(found, "orchestrator")["batch_size"] == 64
    assert "HF_HUB_OFFLINE" not in found.roles[0].role.env
    assert (found.job.slurm.qos, found.job.resources.time) == ("high", "00:10:00")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("batch_size = 512", ("batchsize = 512", "rl.orchestrator.batchsize", "did you mean 'batch_size'")),
        ("impl =", ("imp =", "rl.trainer.model.imp", "did you mean 'model.impl'")),
        ("dp = 2", ("dp = 3", "rl.parallel.dp", "dp = 4")),
        ("nodes_per_fsdp_group = 2", ("nodes_per_fsdp_group = 3", "rl.nodes_per_fsdp_group", "does not divide")),
        ("max_steps = 50", ("max_step = 50", "rl.max_step", "max_steps")),
        ("max_steps = 50", ('project_dir = "/x"', "project_dir", "the folder from which you submit")),
        ("max_steps = 50", ("dry_run = true", "dry_run", "kit submit --dry-run")),
        ("max_steps = 50", ('toml_files = ["a.toml"]', "toml_files", 'extends = "base.toml"')),
    ],
)
def test_what_is_wrong_in_it_is_named(line: str, said: tuple[str, ...], tmp_path: Path) -> None:
    text, *expected = said
    with pytest.raises(ConfigError) as error:
        made(tmp_path, RL.replace(line, text, 1))
    assert "theirs.toml" in str(error.value)
    for one in expected:
        assert one in str(error.value)


def test_without_an_environment_of_the_project_it_needs_an_image_with_the_programs(tmp_path: Path) -> None:
    (tmp_path / "theirs.toml").write_text(RL)
    table = prime_rl_file.job_of(tomllib.loads(RL), "theirs.toml", project=tmp_path)
    assert "setup" not in table
    assert "container" not in table


@pytest.mark.parametrize("text", ['launcher = "rl"\nnum_nodes = 2\n', 'name = "a"\n', "[rl]\nnum_train_nodes = 2\n"])
def test_other_files_are_job_files(text: str) -> None:
    assert not prime_rl_file.is_one(tomllib.loads(text))


def test_an_at_before_the_file_is_no_argument() -> None:
    assert as_overrides(["submit", "@", "a.toml", "--dry-run"]) == ["submit", "a.toml", "--dry-run"]
    assert as_overrides(["submit", "a.toml", "--", "@"]) == ["submit", "a.toml", "--set=--", "--set=@"]
    assert as_overrides(["logs", "@"]) == ["logs", "@"]
