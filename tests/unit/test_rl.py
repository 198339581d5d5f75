"""[rl] and [sft]: shared keys reach the programs, and what cannot run is refused with its path."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from kit import config
from kit.errors import ConfigError, Fault
from kit.frameworks import rl
from kit.planning.plan import Plan, plan
from kit.schema.checkpoint_and_tracking import Checkpoint
from kit.schema.image import Packages
from kit.schema.launcher import Launcher
from kit.schema.rl_and_sft import Rl
from kit.schema.role_programs import Programs
from tests.support import REPO, make_lock, make_site, write_job


def programs(launcher: str, name: str = "reference") -> Programs:
    return config.load_model(REPO / "launchers" / launcher / "launcher.toml", Launcher).programs[name]


def resolve(table: dict[str, Any], *, gpus: int = 8, checkpoint: dict[str, Any] | None = None) -> rl.RlSettings:
    made, saves = Rl.model_validate(table), Checkpoint.model_validate(checkpoint or {})
    assert not broken(table, gpus=gpus, checkpoint=checkpoint)
    return rl.resolve(made, programs("rl", made.programs), gpus=made.gpus_per_node or gpus, checkpoint=saves)


def broken(table: dict[str, Any], *, gpus: int, checkpoint: dict[str, Any] | None) -> list[Fault]:
    made, saves = Rl.model_validate(table), Checkpoint.model_validate(checkpoint or {})
    chosen, gpus = programs("rl", made.programs), made.gpus_per_node or gpus
    return [*rl.broken(made, chosen, name="rl", gpus=gpus, checkpoint=saves)]


def options(resolved: rl.RlSettings, role: str) -> dict[str, Any]:
    return resolved.options[role]


def refused(table: dict[str, Any], *, gpus: int = 8, checkpoint: dict[str, Any] | None = None) -> dict[str, str]:
    return {fault.key: str(fault) for fault in broken(table, gpus=gpus, checkpoint=checkpoint)}


# ---- propagation, key by key ----


@pytest.mark.parametrize(
    ("shared", "value", "reached"),
    [
        ("model", "/data/sft", {"trainer": "model", "orchestrator": "model"}),
        ("data", "/data/sums.jsonl", {"trainer": "problems", "orchestrator": "problems"}),
        ("reward", "/data/reward.py:exact", {"trainer": "reward", "orchestrator": "reward"}),
        ("max_tokens", 16, {"trainer": "max_tokens", "orchestrator": "max_tokens"}),
        ("tokenizer", "/data/words", {"trainer": "tokenizer", "orchestrator": "tokenizer"}),
        ("chat_template", "chatml", {"trainer": "chat_template", "orchestrator": "chat_template"}),
        ("validation", 0.2, {"trainer": "validation", "orchestrator": "validation"}),
        ("skip_bad", True, {"trainer": "skip_bad", "orchestrator": "skip_bad"}),
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
            "orchestrator.tokenizer.name": "org/model",
        },
    ),
    (
        {"model": "org/model", "tokenizer": "org/words"},
        {"trainer.tokenizer.name": "org/words", "orchestrator.tokenizer.name": "org/words"},
    ),
    ({"max_steps": 7}, {"trainer.max_steps": 7, "orchestrator.max_steps": 7}),
    ({"temperature": 0.7}, {"orchestrator.train.sampling.temperature": 0.7}),
    ({}, {"trainer.output_dir": "{run}/outputs", "orchestrator.output_dir": "{run}/outputs"}),
    ({"output_dir": "/data/out"}, {"trainer.output_dir": "/data/out", "orchestrator.output_dir": "/data/out"}),
    ({"seq_len": 2048}, {"trainer.model.seq_len": 2048, "orchestrator.seq_len": 2048}),
    ({"max_async_level": 2}, {"orchestrator.max_off_policy_steps": 2}),
    (
        {"log_level": "debug"},
        {"trainer.log.level": "debug", "orchestrator.log.level": "debug", "inference.log.level": "debug"},
    ),
    (
        {"wandb": {"project": "p", "entity": "e", "group": "g", "name": "run", "offline": True}},
        {
            "trainer.monitors.wandb": {
                "project": "p",
                "entity": "e",
                "group": "g",
                "name": "run",
                "offline": True,
            },
            "orchestrator.monitors.wandb": {
                "project": "p",
                "entity": "e",
                "group": "g",
                "name": "run",
                "offline": True,
            },
        },
    ),
    (
        {"weight_broadcast": "filesystem"},
        {
            "trainer.weight_broadcast": {"type": "filesystem"},
            "orchestrator.weight_broadcast": {"type": "filesystem"},
            "inference.weight_broadcast": {"type": "filesystem"},
        },
    ),
    (
        {"weight_broadcast": "nccl", "num_infer_nodes": 2},
        {
            "trainer.weight_broadcast.type": "nccl",
            "inference.weight_broadcast.type": "nccl",
            "trainer.weight_broadcast.inference_world_size": 16,
            "orchestrator.weight_broadcast.inference_world_size": 16,
        },
    ),
    (
        {"parallel": {"tp": 4}},
        {
            "inference.vllm.tensor_parallel_size": 4,
            "inference.vllm.data_parallel_size": 2,
            "inference.vllm.data_parallel_size_local": 2,
            "inference.vllm.api_server_count": 2,
        },
    ),
    (
        {"prefill": {"nodes": 1}, "decode": {"nodes": 2}, "parallel": {"tp": 8}},
        {
            "inference.use_pd_kv_transfer": True,
            "inference.vllm.enable_expert_parallel": True,
            "orchestrator.inference_metrics_roles": ["prefill", "decode", "decode"],
        },
    ),
    (
        {"num_train_nodes": 4, "nodes_per_fsdp_group": 2},
        {"trainer.model.dp_replicate": 2, "orchestrator.num_train_workers": 32},
    ),
    (
        {"num_train_nodes": 2, "trainer": {"model": {"cp": 4}}},
        {"orchestrator.num_train_workers": 4, "orchestrator.pad_to_multiple_of": 4},
    ),
]


@pytest.mark.parametrize(("table", "expected"), PRIME)
def test_shared_keys_reach_prime_rl(table: dict[str, Any], expected: dict[str, Any]) -> None:
    made = resolve({"programs": "prime-rl", **table})
    for path, value in expected.items():
        assert at(made, path) == value, path


def at(made: rl.RlSettings, path: str) -> Any:
    """What stands at role.option."""
    role, *keys = path.split(".")
    found: Any = options(made, role)
    for key in keys:
        found = found[key]
    return found


def test_each_target_of_a_shared_key_has_its_case() -> None:
    named = {target for targets in programs("rl", "prime-rl").keys.values() for target in targets}
    cases = {path for _, expected in PRIME for path in expected}
    missing = {one for one in named if not any(one == path or one.startswith(f"{path}.") for path in cases)}
    assert missing == {target for target in named if ".ckpt." in target}  # of [checkpoint], below


def test_the_jobs_checkpoint_is_shared() -> None:
    made = resolve({}, checkpoint={"every": 5, "keep": 2, "async": True, "dir": "/data/saved"})
    assert options(made, "trainer")["checkpoint"] == {"every": 5, "keep": 2, "async": True, "dir": "/data/saved"}
    assert "checkpoint" not in options(made, "orchestrator")
    made = resolve({"programs": "prime-rl"}, checkpoint={"every": 5, "keep": 2, "dir": "/data/saved"})
    assert options(made, "trainer")["ckpt"] == {"interval": 5, "keep_last": 2, "output_dir": "/data/saved"}
    assert options(made, "orchestrator")["ckpt"] == {"interval": 5, "keep_last": 2}
    assert (made.roles["trainer"].command or ())[-1] == "/data/saved"


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
    assert f"{group} does not divide num_train_nodes, {nodes}" in said["rl.nodes_per_fsdp_group"]


def test_without_groups_the_trainer_decides() -> None:
    assert "dp_replicate" not in options(resolve({"num_train_nodes": 4}), "trainer")


@pytest.mark.parametrize(
    ("table", "gpus", "workers"),
    [
        ({}, 8, 8),
        ({"parallel": {"dp": 16}, "num_infer_nodes": 2}, 8, 8),
        ({"gpus_per_node": 4}, 8, 4),
        ({}, 0, 1),
        ({"parallel": {"dp": 4}, "num_infer_nodes": 2}, 0, 2),
    ],
)
def test_copies_of_the_model_on_an_inference_node(table: dict[str, Any], gpus: int, workers: int) -> None:
    assert options(resolve(table, gpus=gpus), "inference")["workers"] == workers


@pytest.mark.parametrize(
    ("table", "tp", "copies"),
    [
        ({}, 1, 8),
        ({"parallel": {"tp": 2}}, 2, 4),
        ({"parallel": {"tp": 2, "dp": 8}, "num_infer_nodes": 2}, 2, 4),
        ({"parallel": {"tp": 8}}, 8, 1),
    ],
)
def test_prime_rl_shards_a_copy_of_the_model(table: dict[str, Any], tp: int, copies: int) -> None:
    made = resolve({"programs": "prime-rl", **table})
    vllm = options(made, "inference")["vllm"]
    assert (vllm["tensor_parallel_size"], vllm["api_server_count"]) == (tp, copies)
    assert vllm.get("data_parallel_size_local", 1) == vllm["data_parallel_size"] == copies
    assert (made.roles["router"].command or ())[-1] == str(copies)


@pytest.mark.parametrize(("replicas", "size", "word"), [(None, 2, "4"), (4, 2, "4"), (2, 4, "2"), (1, 8, "1")])
def test_experts_over_several_nodes(replicas: int | None, size: int, word: str) -> None:
    parallel = {"tp": 4} | ({"replicas": replicas} if replicas else {})
    vllm = {"enable_expert_parallel": True}
    made = resolve({"programs": "prime-rl", "num_infer_nodes": 4, "parallel": parallel, "inference": {"vllm": vllm}})
    found = options(made, "inference")["vllm"]
    assert (found["data_parallel_size"], found["data_parallel_size_local"], found["api_server_count"]) == (size, 2, 2)
    assert (made.roles["inference"].command or ())[-2:] == ("2", word)


def test_prefill_and_decode_are_roles() -> None:
    table: dict[str, Any] = {
        "programs": "prime-rl",
        "weight_broadcast": "nccl",
        "parallel": {"tp": 2},
        "inference": {"vllm": {"max_num_seqs": 7, "gpu_memory_utilization": 0.8}},
        "prefill": {"nodes": 4, "replicas": 2, "options": {"vllm": {"enable_dbo": True}}},
        "decode": {"nodes": 2, "options": {"vllm": {"max_num_seqs": 96, "all2all_backend": "deepep_high_throughput"}}},
    }
    made = resolve(table)
    assert {name: (role.nodes, role.shares) for name, role in made.roles.items()} == {
        "trainer": (1, None),
        "prefill": (4, None),
        "decode": (2, None),
        "router": (1, "prefill"),
        "environments": (1, "trainer"),
        "orchestrator": (1, "trainer"),
    }
    assert made.roles["router"].after == ("prefill", "decode")
    assert made.roles["orchestrator"].after == ("prefill", "decode", "router")
    prefill, decode = options(made, "prefill")["vllm"], options(made, "decode")["vllm"]
    assert prefill["all2all_backend"] == decode["all2all_backend"] == "deepep_high_throughput"
    assert (prefill["enable_dbo"], prefill["max_num_seqs"], decode["max_num_seqs"]) == (True, 7, 96)
    assert prefill["gpu_memory_utilization"] == decode["gpu_memory_utilization"] == 0.8
    assert decode["compilation_config"] == {"cudagraph_mode": "FULL_DECODE_ONLY"}
    assert options(made, "trainer")["weight_broadcast"]["inference_world_size"] == 48
    assert options(made, "orchestrator")["inference_metrics_roles"] == ["prefill"] * 16 + ["decode"] * 8
    elsewhere = resolve({**table, "orchestrator_on": "inference"}).roles
    assert elsewhere["orchestrator"].shares == elsewhere["environments"].shares == "decode"
    both = resolve({"programs": "prime-rl", "orchestrator_on": "inference"}).roles
    assert both["orchestrator"].shares == both["router"].shares == "inference"


def test_trainer_and_servers_on_one_node() -> None:
    table = {"programs": "prime-rl", "num_train_gpus": 2, "num_infer_gpus": 6, "parallel": {"tp": 2}}
    made = resolve({**table, "weight_broadcast": "nccl"})
    roles = made.roles
    assert (roles["inference"].gpus, roles["trainer"].gpus) == (tuple(range(6)), (6, 7))
    assert {name: role.shares for name, role in roles.items() if name != "trainer"} == dict.fromkeys(
        [name for name in roles if name != "trainer"], "trainer"
    )
    assert options(made, "orchestrator")["num_train_workers"] == 2
    assert options(made, "trainer")["weight_broadcast"]["inference_world_size"] == 6
    assert options(made, "inference")["vllm"] == {
        "tensor_parallel_size": 2,
        "data_parallel_size": 3,
        "api_server_count": 3,
    }


def test_one_node_of_an_rl_job_in_the_plan(tmp_path: Path) -> None:
    job = 'name = "one"\nlauncher = "rl"\nimage = "frameworks-cpu"\n[rl]\nnum_train_gpus = 1\nnum_infer_gpus = 1\n'
    found = made(tmp_path, job)
    assert (found.allocation.nodes, found.allocation.gpus_per_node) == (1, 2)
    places = {placed.name: (placed.first, placed.nodes, placed.world_size) for placed in found.roles}
    assert places == {"trainer": (0, 1, 1), "inference": (0, 1, 1), "orchestrator": (0, 1, 1)}


@pytest.mark.parametrize(
    ("table", "gpus", "key", "said"),
    [
        ({"num_train_gpus": 6, "num_infer_gpus": 4}, 8, "rl.num_train_gpus", "are more than the node's 8"),
        ({"num_infer_gpus": 4, "num_train_nodes": 2}, 8, "rl.num_infer_gpus", "num_train_nodes asks for more"),
        ({"num_infer_gpus": 4, "prefill": {}}, 8, "rl.num_infer_gpus", "[rl.prefill] asks for more"),
        ({"num_infer_nodes": 4, "parallel": {"replicas": 3}}, 8, "rl.parallel.replicas", "replicas = 2"),
        ({"prefill": {"nodes": 4, "replicas": 3}}, 8, "rl.prefill.replicas", "does not divide the 4 nodes"),
        ({"prefill": {}, "num_infer_nodes": 2}, 8, "rl.num_infer_nodes", "say how many inference nodes"),
        ({"inference": {"vllm": {"tensor_parallel_size": 4}}}, 8, "rl.inference.vllm.tensor_parallel_size", "tp = 4"),
        ({"inference": {"router": {"type": "llm-d"}}}, 8, "rl.inference.router.type", "prime-rl's own router"),
        ({"trainer": {"env_vars": {"A": "b"}}}, 8, "rl.trainer.env_vars", "[roles.trainer] env"),
        ({"num_train_gpus": 1, "parallel": {"tp": 2}}, 8, "rl.parallel.tp", "does not divide num_infer_gpus, 1"),
    ],
)
def test_layouts_that_do_not_fit(table: dict[str, Any], gpus: int, key: str, said: str) -> None:
    assert said in refused({"programs": "prime-rl", **table}, gpus=gpus)[key]


def test_the_reference_programs_do_not_prefill_apart() -> None:
    assert "have no role 'prefill'" in refused({"prefill": {}})["rl.prefill"]


def test_what_follows_from_adapters_and_router_replay() -> None:
    """prime-rl's own launcher says it to the other programs; the job had to."""
    lora = {"model": {"lora": {"alpha": 64}}, "enable_router_replay": True}
    made = resolve({"programs": "prime-rl", "trainer": lora})
    assert options(made, "trainer")["model"]["lora"] == {"rank": 16, "alpha": 64.0}
    assert options(made, "orchestrator")["model"]["lora"] == {"name": "r16-a64.0", "rank": 16, "alpha": 64.0}
    vllm = options(made, "inference")["vllm"]
    assert (vllm["enable_lora"], vllm["max_lora_rank"], vllm["enable_return_routed_experts"]) == (True, 16, True)
    plain = options(resolve({"programs": "prime-rl"}), "inference")["vllm"]
    assert "enable_lora" not in plain and "enable_return_routed_experts" not in plain


def test_a_job_that_asks_for_no_checkpoint_gets_none() -> None:
    """The default folder alone made prime-rl's trainer save, and its orchestrator did not."""
    for role in ("trainer", "orchestrator"):
        assert "ckpt" not in options(resolve({"programs": "prime-rl"}), role)
    made = resolve({"programs": "prime-rl", "trainer": {"ckpt": {}}})
    assert options(made, "trainer")["ckpt"] == {"output_dir": "{run}/outputs"}
    assert options(made, "orchestrator")["ckpt"] == {}


def test_the_environment_of_the_servers_wins_over_prime_rls_own(tmp_path: Path) -> None:
    """Its server sets its own defaults over the step's environment, but not over its option."""
    head = 'name = "x"\nlauncher = "rl"\nimage = "prime-rl"\n[rl]\nprograms = "prime-rl"\ngpus_per_node = 2\n'
    job = f'{head}[rl.inference.env_vars]\nUCX_TLS = "tcp"\n[roles.inference.env]\nUCX_TLS = "rc"\nHOW = "so"\n'
    packages = Packages(pip={"prime-rl": "0.8.0", "verifiers": "0.3.1.dev59"})
    found = tomllib.loads(made(tmp_path, job, packages=packages).text_of("configs/inference.toml"))
    assert found["env_vars"] == {"UCX_TLS": "tcp", "HOW": "so"}


@pytest.mark.parametrize("gpus", [0, 8])
def test_the_reference_server_shards_nothing(gpus: int) -> None:
    said = refused({"parallel": {"tp": 2}}, gpus=gpus)
    assert "in the programs 'reference' each GPU holds a whole model" in said["rl.parallel.tp"]


@pytest.mark.parametrize(
    ("table", "gpus", "key", "said"),
    [
        ({"parallel": {"tp": 3}}, 8, "rl.parallel.tp", "does not divide gpus_per_node, 8"),
        ({"parallel": {"tp": 16}}, 8, "rl.parallel.tp", "does not divide gpus_per_node, 8"),
        (
            {"parallel": {"tp": 2, "dp": 8}},
            8,
            "rl.parallel.dp",
            "tp 2 x dp 8 = 16 is not 1 inference nodes x 8 GPUs = 8",
        ),
        ({"parallel": {"dp": 8}, "num_infer_nodes": 2}, 8, "rl.parallel.dp", "dp = 16"),
        ({"parallel": {"tp": 2}}, 0, "rl.parallel.tp", "a node without GPUs"),
        ({"parallel": {"dp": 3}, "num_infer_nodes": 2}, 0, "rl.parallel.dp", "over 2 inference nodes"),
    ],
)
def test_inference_parallel_must_fit_the_gpus(table: dict[str, Any], gpus: int, key: str, said: str) -> None:
    assert said in refused({"programs": "prime-rl", **table}, gpus=gpus)[key]


def test_ranks_that_share_a_sequence_are_one_reader() -> None:
    """The orchestrator waited for a READY of every GPU: with context parallelism one of a group reads, and it waited for ever."""
    said = refused({"programs": "prime-rl", "trainer": {"model": {"cp": 3}}})
    assert said["rl.trainer.model.cp"].startswith("rl.trainer.model.cp: 3 does not divide the trainer's 8 ranks")
    assert "pad_to_multiple_of" not in options(resolve({"programs": "prime-rl"}), "orchestrator")
    own = {"programs": "prime-rl", "trainer": {"model": {"cp": 2}}, "orchestrator": {"num_train_workers": 1}}
    assert options(resolve(own), "orchestrator") == {
        **options(resolve({"programs": "prime-rl", "trainer": {"model": {"cp": 2}}}), "orchestrator"),
        "num_train_workers": 1,
    }


def test_prime_rls_roles_log_to_one_run() -> None:
    table = {"programs": "prime-rl", "wandb": {"project": "p"}}
    roles = resolve(table).roles
    assert {name: role.env.get("WANDB_SHARED_LABEL") for name, role in roles.items()} == {
        **dict.fromkeys(roles),
        "trainer": "trainer",
        "orchestrator": "orchestrator",
    }
    assert roles["trainer"].env["WANDB_SHARED_MODE"] == "1"
    for silent in ({"programs": "prime-rl"}, {**table, "wandb": {"project": "p", "offline": True}}):
        assert not any("WANDB_SHARED_MODE" in role.env for role in resolve(silent).roles.values())


# ---- refusals ----


def test_what_these_roles_cannot_start_is_refused() -> None:
    """It passed, and was refused on the nodes."""
    said = refused({"programs": "prime-rl", "inference": {"deployment": {"type": "disaggregated"}}})
    assert "[rl.prefill] and [rl.decode] say on which nodes" in said["rl.inference.deployment.type"]
    resolve({"programs": "prime-rl", "inference": {"deployment": {"type": "single_node"}}})


def test_an_unknown_option_is_refused_with_its_path_and_the_nearest() -> None:
    said = refused({"trainer": {"clip_ration": 0.1, "checkpoint": {"ever": 5}}, "inference": {"workrs": 2}})
    assert said["rl.trainer.clip_ration"].endswith(
        "did you mean 'clip_ratio'?\n  try: [rl.trainer]\n       clip_ratio = 0.1"
    )
    assert "did you mean 'checkpoint.every'?" in said["rl.trainer.checkpoint.ever"]
    assert "did you mean 'workers'?" in said["rl.inference.workrs"]


@pytest.mark.parametrize(
    ("table", "key", "hint"),
    [
        ("[rl]\nmax_step = 3", "rl.max_step", "max_steps"),
        ("[rl.parallel]\ntpp = 2", "rl.parallel.tpp", "tp"),
        ("[rl.wandb]\nprojekt = 'p'", "rl.wandb.projekt", "project"),
        ("[rl.orchestrator]\nbatchsize = 8", "rl.orchestrator.batchsize", "batch_size"),
    ],
)
def test_an_unknown_key_of_a_job_file(table: str, key: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        made(tmp_path, f'name = "x"\nlauncher = "rl"\nimage = "frameworks-cpu"\n{table}\n')
    (fault,) = error.value.faults
    assert fault.key == key
    assert hint in fault.hint


def test_prime_rl_checks_its_own_options() -> None:
    made = resolve({"programs": "prime-rl", "trainer": {"optim": {"lr": 3e-6}, "loss": {"type": "ipo"}}})
    assert options(made, "trainer")["optim"] == {"lr": 3e-6}


def test_a_shared_key_that_goes_nowhere_is_refused() -> None:
    assert "allowed: model, seq_len" in refused({"log_level": "debug"})["rl.log_level"]
    assert "rl.wandb.project" in refused({"wandb": {"project": "p"}})
    resolve({"model": "/data/sft"})  # whose tokenizer was not asked for
    said = refused({"programs": "prime-rl"}, checkpoint={"async": True, "keep": 2})
    assert list(said) == ["checkpoint.async"]
    assert "allowed: checkpoint.every, checkpoint.keep, checkpoint.dir" in said["checkpoint.async"]


def test_the_trainer_reads_what_the_orchestrator_makes() -> None:
    said = refused({"trainer": {"seq_len": 16}, "orchestrator": {"seq_len": 32}})
    assert "above the trainer's 16" in said["rl.orchestrator.seq_len"]


@pytest.mark.parametrize(
    ("key", "option"), [("max_steps", "max_steps"), ("temperature", "temperature"), ("output_dir", "run_dir")]
)
def test_roles_must_agree(key: str, option: str) -> None:
    said = refused({"trainer": {option: 1}, "orchestrator": {option: 2}})
    assert f"trainer.{option} = 1, orchestrator.{option} = 2" in said[f"rl.{key}"]


# ---- roles ----


def test_roles_of_the_reference_programs() -> None:
    made = resolve({"num_train_nodes": 2, "num_infer_nodes": 3, "hub_offline": True})
    assert {name: (role.nodes, role.shares) for name, role in made.roles.items()} == {
        "trainer": (2, None),
        "inference": (3, None),
        "orchestrator": (1, "trainer"),
    }
    assert [name for name, role in made.roles.items() if role.policy == "main"] == ["trainer"]
    assert all(role.env["HF_HUB_OFFLINE"] == "1" for role in made.roles.values())


def test_roles_of_prime_rl() -> None:
    made = resolve({"programs": "prime-rl", "num_infer_nodes": 2, "weight_broadcast": "nccl"})
    assert {name: (role.nodes, role.shares) for name, role in made.roles.items()} == {
        "trainer": (1, None),
        "inference": (2, None),
        "router": (1, "inference"),
        "environments": (1, "trainer"),
        "orchestrator": (1, "trainer"),
    }
    # The orchestrator ends by itself, before or after the trainer.
    assert [name for name, role in made.roles.items() if role.policy == "main"] == ["trainer", "orchestrator"]
    assert (made.roles["trainer"].command or ())[-3:] == ("nccl", "{run}/outputs", "{run}/outputs")
    assert "HF_HUB_OFFLINE" not in made.roles["trainer"].env


JOB = """\
name = "sums"
launcher = "rl"
image = "frameworks-cpu"
args = ["--lr", "0.001"]
[rl]
num_train_nodes = 2
num_infer_nodes = 1
gpus_per_node = 2
nodes_per_fsdp_group = 1
max_steps = 20
[rl.orchestrator]
batch_size = 64
[checkpoint]
every = 5
[roles.inference]
restart = 7
env = { NOISE = "on" }
"""
PACKAGES = Packages(pip={"torch": "2.13.0", "aiohttp": "3.14.5"})


def made(folder: Path, job: str = JOB, **overrides: Any) -> Plan:
    resolved = config.load_job(write_job(folder, job), cluster="local")
    lock = make_lock("frameworks-cpu").model_copy(update={"packages": overrides.get("packages", PACKAGES)})
    return plan(resolved, lock, make_site())


def test_the_plan_of_an_rl_job(tmp_path: Path) -> None:
    found = made(tmp_path)
    assert found.allocation.nodes == 3
    assert found.allocation.gpus_per_node == 2
    places = {placed.name: (placed.first, placed.nodes, placed.world_size) for placed in found.roles}
    assert places == {"trainer": (0, 2, 4), "inference": (2, 1, 1), "orchestrator": (0, 1, 1)}
    trainer = tomllib.loads(found.text_of("configs/trainer.toml"))
    assert trainer == {
        "max_steps": 20,
        "weight_broadcast": "filesystem",
        "inference_servers": 1,
        "dp_replicate": 2,
        "checkpoint": {"every": 5},
    }
    assert tomllib.loads(found.text_of("configs/orchestrator.toml")) == {"batch_size": 64, "max_steps": 20}
    assert tomllib.loads(found.text_of("configs/inference.toml")) == {"workers": 2}
    program = found.text_of("roles/trainer/program.sh")
    for word in ("/kit/run/code/trainer.py", "/kit/run/configs/trainer.toml", "--lr"):
        assert f"    {word}\n" in program
    assert "--lr" not in found.text_of("roles/inference/program.sh")


def test_the_example_of_a_mixture_of_experts() -> None:
    """It builds on the dense one: experts over a node on both sides, all else the same."""
    found = {}
    for name in ("prime-rl", "prime-rl-moe"):
        resolved = config.load_job(REPO / "examples" / name / "job.toml", cluster="infiniband")
        one = plan(resolved, None, make_site(containers=False))
        found[name] = tomllib.loads(one.text_of("configs/trainer.toml"))
        inference = tomllib.loads(one.text_of("configs/inference.toml"))
        assert inference["vllm"]["model"] == found[name]["model"]["name"] == found[name]["tokenizer"]["name"]
    assert inference["vllm"]["enable_expert_parallel"] is True
    dense, experts = found["prime-rl"], found["prime-rl-moe"]
    assert (experts["model"].pop("ep"), experts["model"].pop("impl")) == (8, "custom")
    assert experts["monitors"]["wandb"].pop("name") == "moe"
    for one in (dense["monitors"]["wandb"], dense["model"], experts["model"], dense["tokenizer"], experts["tokenizer"]):
        one.pop("name")
    assert experts == dense


def test_what_the_job_says_of_a_role_comes_on_top(tmp_path: Path) -> None:
    inference = next(placed.role for placed in made(tmp_path).roles if placed.name == "inference")
    assert (inference.restart, inference.env["NOISE"], inference.policy) == (7, "on", "service")
    assert inference.ready is not None and inference.ready.path == "/health"


def test_a_role_of_the_jobs_own_gets_nodes_besides(tmp_path: Path) -> None:
    found = made(tmp_path, JOB + '[roles.judge]\ncommand = ["judge"]\npolicy = "service"\n')
    assert found.allocation.nodes == 4
    assert [placed.name for placed in found.roles] == ["trainer", "inference", "orchestrator", "judge"]


def test_resources_that_contradict_the_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        made(tmp_path, JOB + "[resources]\nnodes = 4\ngpus_per_node = 1\n")
    assert [(f.key, f.problem) for f in error.value.faults] == [
        ("resources.nodes", "4 contradicts [rl], which needs 3"),
        ("resources.gpus_per_node", "1 contradicts [rl], which needs 2"),
    ]
    assert made(tmp_path, JOB + "[resources]\nnodes = 3\ngpus_per_node = 2\n").allocation.nodes == 3


def test_the_image_must_hold_what_the_chosen_programs_import(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lacks aiohttp"):
        made(tmp_path, packages=Packages(pip={"torch": "2.13.0"}))
    with pytest.raises(ConfigError, match="lacks prime-rl"):
        made(
            tmp_path,
            JOB.replace("[rl]", '[rl]\nprograms = "prime-rl"').replace("[rl.orchestrator]", "[rl.inference.vllm]"),
        )


def test_unknown_programs_are_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'prime-rl'"):
        made(tmp_path, JOB.replace("[rl]", '[rl]\nprograms = "prime_rl"'.replace("_", "-r")))


def test_a_table_that_the_launcher_does_not_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not read"):
        made(tmp_path, JOB.replace('launcher = "rl"', 'launcher = "ddp"'))


def test_stable_template_variables_of_an_rl_job(tmp_path: Path) -> None:
    (tmp_path / "my.j2").write_text(
        "{{ num_train_nodes }} {{ num_infer_nodes }} {{ gpus_per_node }} {{ hub_offline }} "
        "{{ hf_hub_offline }} {{ num_nodes }}\n"
    )
    job = JOB.replace("max_steps = 20\n", "max_steps = 20\nhub_offline = true\n") + '[slurm]\ntemplate = "my.j2"\n'
    assert made(tmp_path, job).text_of("script") == "2 1 2 True True 3\n"


def test_sft_is_the_trainer_alone(tmp_path: Path) -> None:
    job = """\
name = "sums"
launcher = "sft"
image = "frameworks-cpu"
[sft]
num_train_nodes = 2
nodes_per_fsdp_group = 2
gpus_per_node = 2
model = "/data/rl"
max_steps = 30
[checkpoint]
every = 10
"""
    found = made(tmp_path, job)
    assert [(placed.name, placed.nodes, placed.world_size) for placed in found.roles] == [("trainer", 2, 4)]
    assert tomllib.loads(found.text_of("configs/trainer.toml")) == {
        "model": "/data/rl",
        "max_steps": 30,
        "dp_replicate": 1,
        "checkpoint": {"every": 10},
    }


def test_shared_keys_reach_prime_rls_fine_tuning(tmp_path: Path) -> None:
    job = """\
name = "words"
launcher = "sft"
image = "prime-rl"
args = ["--data.batch-size", "32"]
[sft]
programs = "prime-rl"
num_train_nodes = 4
nodes_per_fsdp_group = 2
gpus_per_node = 2
model = "org/model"
seq_len = 4096
max_steps = 30
log_level = "debug"
wandb = { project = "p", name = "run" }
[checkpoint]
every = 10
keep = 2
"""
    found = made(tmp_path, job, packages=Packages(pip={"prime-rl": "0.8.0", "verifiers": "0.3.1"}))
    assert tomllib.loads(found.text_of("configs/trainer.toml")) == {
        "model": {"name": "org/model", "dp_replicate": 2},
        "tokenizer": {"name": "org/model"},
        "data": {"seq_len": 4096},
        "max_steps": 30,
        "log": {"level": "debug"},
        "monitors": {"wandb": {"project": "p", "name": "run"}},
        "output_dir": "/kit/run/outputs",
        "ckpt": {"interval": 10, "keep_last": 2, "output_dir": "/kit/run/outputs"},
    }
    program = found.text_of("roles/trainer/program.sh")
    words = [
        "/kit/run/code/lib/prime-rl/sft-trainer.sh",
        "/kit/run/configs/trainer.toml",
        "/kit/run/outputs",
        "/kit/run/outputs",
        "none",
        "--data.batch-size",
        "32",
    ]
    assert "".join(f"    {word}\n" for word in words) in program


EVALUATED = """\
name = "words"
launcher = "sft"
image = "prime-rl"
[sft]
programs = "prime-rl"
num_train_nodes = 2
num_infer_nodes = 1
gpus_per_node = 2
model = "org/model"
max_steps = 30
weight_broadcast = "nccl"
wandb = { project = "p", name = "run" }
[sft.eval]
interval = 10
source = [{ name = "reverse-text", env = { taskset = { id = "reverse-text" } } }]
[sft.evals.monitors]
file = { path = "evals.jsonl" }
"""
NEWER = Packages(pip={"prime-rl": "0.8.0", "verifiers": "0.4.0"})


def test_a_fine_tuning_that_is_evaluated(tmp_path: Path) -> None:
    found = made(tmp_path, EVALUATED, packages=NEWER)
    assert found.allocation.nodes == 3
    places = {placed.name: (placed.first, placed.nodes) for placed in found.roles}
    assert places == {
        "trainer": (0, 2),
        "inference": (2, 1),
        "router": (2, 1),
        "environments": (2, 1),
        "evals": (2, 1),
    }
    trainer, evals, inference = (
        tomllib.loads(found.text_of(f"configs/{role}.toml")) for role in ("trainer", "evals", "inference")
    )
    assert trainer["eval"] == evals["eval"]
    assert trainer["weight_broadcast"] == evals["weight_broadcast"] == {"type": "nccl", "inference_world_size": 2}
    assert (evals["model"], inference["vllm"]["model"], evals["online"]) == (
        "org/model",
        "org/model",
        {"max_steps": 30},
    )
    assert evals["monitors"] == {"wandb": {"project": "p", "name": "run"}, "file": {"path": "evals.jsonl"}}
    env = {placed.name: placed.role.env for placed in found.roles}
    assert [name for name in env if "WANDB_SHARED_MODE" in env[name]] == ["trainer", "evals"]


def test_options_of_a_role_that_is_not_there(tmp_path: Path) -> None:
    job = EVALUATED.replace("[sft.eval]", "[sft.trainer.val]").replace("interval", "intervals")
    with pytest.raises(ConfigError, match=r"sft\.evals: this run has no role 'evals'") as said:
        made(tmp_path, job, packages=NEWER)
    assert "[sft.eval]" in str(said.value)


@pytest.mark.parametrize(
    ("pip", "env", "found"),
    [
        ({"verifiers": "0.2.3", "prime-rl": "0.8.0"}, "", "launcher 'sft' does not know prime-rl 0.8.0"),
        ({"prime-rl": "0.7.0"}, "", "launcher 'sft' does not know prime-rl 0.7.0"),
        ({"prime-rl": "0.9.2", "verifiers": "0.1"}, "", 'PROGRAM_RELEASE = "0.8.1"'),
        (
            {"prime-rl": "0.8.0", "verifiers": "0.4.0"},
            'PROGRAM_RELEASE = "0.8.0"',
            "launcher 'sft' does not know release 0.8.0",
        ),
        ({"prime-rl": "0.8.0", "verifiers": "0.3.1.dev59"}, "", None),
        ({"prime-rl": "0.8.1"}, "", None),
        ({"prime-rl": "0.8.0"}, 'PROGRAM_RELEASE = "0.8.1.dev67"', None),
    ],
)
def test_releases_of_prime_rl(pip: dict[str, str], env: str, found: str | None, tmp_path: Path) -> None:
    """Each release has other options: the job was queued, and refused on its nodes."""
    job = f"{EVALUATED}[env]\n{env}\n"
    if found is None:
        made(tmp_path, job, packages=Packages(pip=pip))
        return
    with pytest.raises(ConfigError) as said:
        made(tmp_path, job, packages=Packages(pip=pip))
    assert found in str(said.value)


def test_every_shared_target_is_an_option_of_its_program() -> None:
    for launcher in ("rl", "sft"):
        found = programs(launcher)
        for targets in found.keys.values():
            for target in targets:
                role, _, path = target.partition(".")
                known = found.roles[role].options
                assert known is not None and path in known, target
