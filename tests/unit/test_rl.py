"""[rl] and [sft]: shared keys reach the programs, and what cannot run is refused with its path."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from kit import config
from kit.errors import ConfigError
from kit.frameworks import rl
from kit.spec.launcher import Launcher
from kit.spec.programs import Programs
from kit.spec.rl import Rl, Sft
from kit.spec.training import Checkpoint
from tests.support import REPO


def programs(launcher: str, name: str = "reference") -> Programs:
    return config.load_model(REPO / "launchers" / launcher / "launcher.toml", Launcher).programs[name]


def resolve(table: dict[str, Any], *, gpus: int = 8, checkpoint: dict[str, Any] | None = None) -> rl.Resolved:
    made = Rl.model_validate(table)
    return rl.resolve(
        made,
        programs("rl", made.programs),
        name="rl",
        gpus_per_node=gpus,
        checkpoint=Checkpoint.model_validate(checkpoint or {}),
        file="job.toml",
    )


def options(resolved: rl.Resolved, role: str) -> dict[str, Any]:
    return tomllib.loads(resolved.files[f"configs/{role}.toml"])


def refused(table: dict[str, Any], *, gpus: int = 8) -> dict[str, str]:
    with pytest.raises(ConfigError) as error:
        resolve(table, gpus=gpus)
    return {fault.key: str(fault) for fault in error.value.faults}


# ---- propagation, key by key ----


@pytest.mark.parametrize(
    ("shared", "value", "reached"),
    [
        ("model", "/data/sft", {"trainer": "model"}),
        ("seq_len", 24, {"trainer": "seq_len", "orchestrator": "seq_len"}),
        ("max_steps", 7, {"trainer": "max_steps", "orchestrator": "max_steps"}),
        ("max_async_level", 0, {"orchestrator": "max_async_level"}),
        ("temperature", 0.7, {"trainer": "temperature", "orchestrator": "temperature"}),
        ("output_dir", "/data/out", {"trainer": "run_dir", "orchestrator": "run_dir"}),
        ("weight_broadcast", "nccl", {"trainer": "weight_broadcast"}),
    ],
)
def test_a_shared_key_reaches_the_reference_programs(shared: str, value: Any, reached: dict[str, str]) -> None:
    made = resolve({shared: value})
    for role in ("trainer", "orchestrator", "inference"):
        found = options(made, role)
        if role in reached:
            assert found[reached[role]] == value
        else:
            assert shared not in found


PRIME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"model": "org/model"},
        {
            "trainer.model.name": "org/model",
            "orchestrator.model.name": "org/model",
            "inference.vllm.model": "org/model",
            "trainer.tokenizer.name": "org/model",
        },
    ),
    ({"model": "org/model", "tokenizer": "org/words"}, {"trainer.tokenizer.name": "org/words"}),
    ({"seq_len": 2048}, {"trainer.model.seq_len": 2048, "orchestrator.seq_len": 2048}),
    ({"max_async_level": 2}, {"orchestrator.max_off_policy_steps": 2}),
    ({"log_level": "debug"}, {"trainer.log.level": "debug", "inference.log.level": "debug"}),
    (
        {"wandb": {"project": "p", "name": "run", "offline": True}},
        {
            "trainer.monitors.wandb.project": "p",
            "trainer.monitors.wandb.name": "run-trainer",
            "orchestrator.monitors.wandb.name": "run-orchestrator",
            "orchestrator.monitors.wandb.offline": True,
        },
    ),
    (
        {"weight_broadcast": "nccl", "num_infer_nodes": 2},
        {
            "trainer.weight_broadcast.type": "nccl",
            "inference.weight_broadcast.type": "nccl",
            "orchestrator.weight_broadcast.inference_world_size": 16,
        },
    ),
    ({"parallel": {"tp": 4}}, {"inference.vllm.tensor_parallel_size": 4, "inference.vllm.data_parallel_size": 2}),
    (
        {"num_train_nodes": 4, "nodes_per_fsdp_group": 2},
        {"trainer.model.dp_replicate": 2, "orchestrator.num_train_workers": 32},
    ),
]


@pytest.mark.parametrize(("table", "expected"), PRIME)
def test_shared_keys_reach_prime_rl(table: dict[str, Any], expected: dict[str, Any]) -> None:
    made = resolve({"programs": "prime-rl", **table})
    for path, value in expected.items():
        role, *keys = path.split(".")
        found: Any = options(made, role)
        for key in keys:
            found = found[key]
        assert found == value, path


def test_the_jobs_checkpoint_is_shared() -> None:
    made = resolve({}, checkpoint={"every": 5, "keep": 2, "async": True, "dir": "/data/saved"})
    assert options(made, "trainer")["checkpoint"] == {"every": 5, "keep": 2, "async": True, "dir": "/data/saved"}
    assert "checkpoint" not in options(made, "orchestrator")


def test_what_a_sub_table_says_wins() -> None:
    given = {"seq_len": 64, "weight_broadcast": "nccl", "trainer": {"seq_len": 128, "checkpoint": {"every": 1}}}
    made = resolve(given, checkpoint={"every": 5, "keep": 2})
    assert options(made, "trainer")["seq_len"] == 128
    assert options(made, "orchestrator")["seq_len"] == 64
    assert options(made, "trainer")["checkpoint"] == {"every": 1, "keep": 2}
    assert given["trainer"] == {"seq_len": 128, "checkpoint": {"every": 1}}  # the job's own table is left alone


def test_keys_that_are_not_set_are_left_out() -> None:
    assert options(resolve({}, gpus=0), "orchestrator") == {}
    assert options(resolve({}, gpus=0), "inference") == {"workers": 1}


# ---- divisors ----


@pytest.mark.parametrize(("nodes", "group", "copies"), [(4, 1, 4), (4, 2, 2), (4, 4, 1), (6, 3, 2), (1, 1, 1)])
def test_nodes_per_fsdp_group_sets_the_copies(nodes: int, group: int, copies: int) -> None:
    made = resolve({"num_train_nodes": nodes, "nodes_per_fsdp_group": group})
    assert options(made, "trainer")["dp_replicate"] == copies


@pytest.mark.parametrize(("nodes", "group"), [(4, 3), (2, 4), (5, 2)])
def test_nodes_per_fsdp_group_must_divide(nodes: int, group: int) -> None:
    said = refused({"num_train_nodes": nodes, "nodes_per_fsdp_group": group})
    assert f"a divisor of num_train_nodes, {nodes}" in said["rl.nodes_per_fsdp_group"]


def test_without_groups_the_trainer_decides() -> None:
    assert "dp_replicate" not in options(resolve({"num_train_nodes": 4}), "trainer")


@pytest.mark.parametrize(
    ("table", "gpus", "workers"),
    [
        ({}, 8, 8),
        ({"parallel": {"tp": 2}}, 8, 4),
        ({"parallel": {"tp": 2, "dp": 8}, "num_infer_nodes": 2}, 8, 4),
        ({"gpus_per_node": 4}, 8, 4),
        ({}, 0, 1),
        ({"parallel": {"dp": 4}, "num_infer_nodes": 2}, 0, 2),
    ],
)
def test_copies_of_the_model_on_an_inference_node(table: dict[str, Any], gpus: int, workers: int) -> None:
    assert options(resolve(table, gpus=gpus), "inference")["workers"] == workers


@pytest.mark.parametrize(
    ("table", "gpus", "key", "said"),
    [
        ({"parallel": {"tp": 3}}, 8, "rl.parallel.tp", "a divisor of gpus_per_node, 8"),
        ({"parallel": {"tp": 16}}, 8, "rl.parallel.tp", "a divisor of gpus_per_node, 8"),
        ({"parallel": {"tp": 2, "dp": 8}}, 8, "rl.parallel.dp", "tp 2 x dp 8 = 16; allowed: 8: 1 inference nodes"),
        ({"parallel": {"dp": 8}, "num_infer_nodes": 2}, 8, "rl.parallel.dp", "dp = 16"),
        ({"parallel": {"tp": 2}}, 0, "rl.parallel.tp", "1 without GPUs"),
        ({"parallel": {"dp": 3}, "num_infer_nodes": 2}, 0, "rl.parallel.dp", "a multiple of num_infer_nodes, 2"),
    ],
)
def test_inference_parallel_must_fit_the_gpus(table: dict[str, Any], gpus: int, key: str, said: str) -> None:
    assert said in refused(table, gpus=gpus)[key]


# ---- refusals ----


def test_an_unknown_option_is_refused_with_its_path_and_the_nearest() -> None:
    said = refused({"trainer": {"clip_ration": 0.1, "checkpoint": {"ever": 5}}, "inference": {"workrs": 2}})
    assert said["rl.trainer.clip_ration"].endswith("clip_ratio")
    assert said["rl.trainer.checkpoint.ever"].endswith("checkpoint.every")
    assert said["rl.inference.workrs"].endswith("workers")


def test_prime_rl_checks_its_own_options() -> None:
    made = resolve({"programs": "prime-rl", "trainer": {"optim": {"lr": 3e-6}, "loss": {"type": "ipo"}}})
    assert options(made, "trainer")["optim"] == {"lr": 3e-6}


def test_a_shared_key_that_goes_nowhere_is_refused() -> None:
    assert "these programs take model, seq_len" in refused({"log_level": "debug"})["rl.log_level"]
    assert "rl.tokenizer" in refused({"tokenizer": "org/words"})
    resolve({"model": "/data/sft"})  # whose tokenizer was not asked for


def test_the_trainer_reads_what_the_orchestrator_makes() -> None:
    said = refused({"trainer": {"seq_len": 16}, "orchestrator": {"seq_len": 32}})
    assert "at most the trainer's, 16" in said["rl.orchestrator.seq_len"]


@pytest.mark.parametrize("key", ["max_steps", "temperature"])
def test_roles_must_agree(key: str) -> None:
    said = refused({"trainer": {key: 1}, "orchestrator": {key: 2}})
    assert f"trainer.{key} 1, orchestrator.{key} 2" in said[f"rl.{key}"]


# ---- roles ----


def test_roles_of_the_reference_programs() -> None:
    made = resolve({"num_train_nodes": 2, "num_infer_nodes": 3, "hub_offline": True})
    assert {name: role.nodes for name, role in made.roles.items()} == {"trainer": 2, "inference": 3, "orchestrator": 0}
    assert made.roles["orchestrator"].program.on == "trainer"
    assert [name for name, role in made.roles.items() if role.program.exit == "main"] == ["trainer"]
    assert made.roles["trainer"].command == ("{python}", "{code}/trainer.py", "--config", "{config}")
    assert made.roles["inference"].config == "configs/inference.toml"
    assert all(role.env["HF_HUB_OFFLINE"] == "1" for role in made.roles.values())
    assert set(made.files) == {f"configs/{name}.toml" for name in made.roles}


def test_roles_of_prime_rl() -> None:
    made = resolve({"programs": "prime-rl", "num_infer_nodes": 2, "weight_broadcast": "nccl"})
    assert {name: role.nodes for name, role in made.roles.items()} == {
        "trainer": 1,
        "inference": 2,
        "router": 0,
        "orchestrator": 0,
    }
    assert made.roles["trainer"].command[-1] == "nccl"
    assert "HF_HUB_OFFLINE" not in made.roles["trainer"].env


def test_sft_is_the_trainer_alone() -> None:
    table = Sft.model_validate({"num_train_nodes": 4, "nodes_per_fsdp_group": 2, "model": "/data/rl", "max_steps": 30})
    made = rl.resolve(
        table, programs("sft"), name="sft", gpus_per_node=2, checkpoint=Checkpoint(every=10), file="job.toml"
    )
    assert list(made.roles) == ["trainer"]
    assert options(made, "trainer") == {
        "model": "/data/rl",
        "max_steps": 30,
        "dp_replicate": 2,
        "checkpoint": {"every": 10},
    }


def test_every_shared_target_is_an_option_of_its_program() -> None:
    for launcher in ("rl", "sft"):
        found = programs(launcher)
        for targets in found.keys.values():
            for target in targets:
                role, _, path = target.partition(".")
                known = found.roles[role].options
                assert known is not None and path in known, target
