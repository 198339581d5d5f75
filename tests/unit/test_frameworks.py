"""Errors that a framework would raise after an hour are reported before submit, with the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import tomli_w

from kit import config, frameworks
from kit.errors import ConfigError
from kit.frameworks import deepspeed
from kit.planning.plan import Plan, plan
from kit.schema.job import FRAMEWORK_TABLES
from kit.schema.launcher import FrameworkName, Launcher
from tests.support import REPO, make_lock, make_site, plan_of, write_job

BASE = {"name": "x", "image": "train-cpu", "resources": {"nodes": 2, "gpus_per_node": 2}}


def keys_of(error: pytest.ExceptionInfo[ConfigError]) -> dict[str, str]:
    return {fault.key: str(fault) for fault in error.value.faults}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (4, 1, 1)),
        ({"train_batch_size": 32}, (32, 8, 1)),
        ({"train_batch_size": 32, "gradient_accumulation_steps": 4}, (32, 2, 4)),
        ({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2}, (32, 2, 4)),
        ({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2}, (24, 3, 2)),
        ({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2}, (8, 2, 1)),
    ],
)
def test_batch_sizes_follow_from_each_other(given: dict[str, Any], expected: tuple[int, int, int]) -> None:
    made = deepspeed.completed(given, 4)
    assert not [*deepspeed.broken(given, 4)]
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert tuple(made[name] for name in names) == expected


@pytest.mark.parametrize(
    ("given", "key", "said"),
    [
        (
            {"train_batch_size": 30, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4},
            "train_batch_size",
            "30 is not 2 per GPU x 4 accumulation steps x 4 ranks = 32",
        ),
        ({"train_batch_size": 2}, "train_batch_size", "2 is not a multiple of 4 ranks"),
        (
            {"train_batch_size": 32, "gradient_accumulation_steps": 3},
            "train_batch_size",
            "32 is not a multiple of 3 accumulation steps x 4 ranks = 12",
        ),
        (
            {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 16},
            "train_batch_size",
            "32 is not a multiple of 16 per GPU x 4 ranks = 64",
        ),
        ({"train_batch_size": 0}, "train_batch_size", "a whole number"),
        (
            {"scheduler": {"params": {"warmup_num_steps": "auto"}}},
            "scheduler.params.warmup_num_steps",
            "without it, DeepSpeed fails here",
        ),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage", "allowed: 0, 1, 2, 3"),
        ({"zero_optimization": {"stage": 2, "offload_param": {}}}, "zero_optimization.offload_param", "stage 3"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "bf16.enabled", "one of them"),
        ({"train_batchsize": 32}, "train_batchsize", "did you mean 'train_batch_size'?"),
        ({"zero_optimization": {"overlap_com": True}}, "zero_optimization.overlap_com", "'overlap_comm'"),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"devices": "cpu"}}},
            "zero_optimization.offload_param.devices",
            "'device'",
        ),
    ],
)
def test_deepspeed_refuses(given: dict[str, Any], key: str, said: str) -> None:
    said_of = {fault.key: str(fault) for fault in deepspeed.broken(given, 4)}
    assert said in said_of[f"deepspeed.{key}"]


def test_auto_is_deepspeeds_default_where_deepspeed_says_so() -> None:
    """Hugging Face's examples are full of it, and DeepSpeed 0.19 takes them."""
    zero = {"stage": 3, "reduce_bucket_size": "auto", "offload_param": {"device": "cpu", "pin_memory": "auto"}}
    table = {"zero_optimization": zero, "bf16": {"enabled": "auto"}}
    assert [*deepspeed.broken(table, 4)] == []
    (line,) = deepspeed.explained(table)
    named = "zero_optimization.reduce_bucket_size, zero_optimization.offload_param.pin_memory, bf16.enabled"
    assert line == f"DeepSpeed takes its own default for {named} ('auto')."
    assert deepspeed.explained({"zero_optimization": {"stage": 3}}) == ()


def test_a_key_of_another_release_is_handed_on() -> None:
    assert not [*deepspeed.broken({"something_new": {"enabled": True}}, 4)]
    assert deepspeed.completed({"something_new": {"enabled": True}}, 4)["something_new"] == {"enabled": True}


@pytest.mark.parametrize(
    "args",
    [
        ["--tensor-model-parallel-size", "4", "--pipeline-model-parallel-size=12"],
        ["--tp=4", "--pp", "12"],
        ["--pp", "12"],  # and AutoTP in the table
    ],
)
def test_bloom_176b_as_published(tmp_path: Path, args: list[str]) -> None:
    """TP 4, PP 12, DP 8 on 384 GPUs, batches of 2048 by 2: every copy of the model is on 48 ranks."""
    table: dict[str, Any] = {"train_batch_size": 2048, "train_micro_batch_size_per_gpu": 2}
    if "--tp=4" not in args and len(args) == 2:
        table["tensor_parallel"] = {"autotp_size": 4}
    made = own_program(tmp_path, args, table)
    assert made.warnings == ()
    assert json.loads(made.text_of("ds_config.json"))["gradient_accumulation_steps"] == 128


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "2048 is not a multiple of 2 per GPU x 384 ranks = 768; correct only if the program splits its model"),
        (["--tp", "2"], "x 192 data parallel ranks (384 ranks, 2 for each model) = 384; correct only if"),
        (["--tp", "7"], "384 ranks cannot be divided into models of 7 ranks each"),
    ],
)
def test_sizes_of_a_users_own_program_are_warned_of_only(tmp_path: Path, args: list[str], said: str) -> None:
    table = {"train_batch_size": 2048, "train_micro_batch_size_per_gpu": 2}
    made = own_program(tmp_path, args, table)
    (warning,) = made.warnings
    assert said in warning.problem
    assert json.loads(made.text_of("ds_config.json")) == table, "as the user wrote them"


def own_program(folder: Path, args: list[str], table: dict[str, Any]) -> Plan:
    """The plan of a job whose program is the user's own, on 48 nodes of 8 GPUs."""
    job = {**BASE, "launcher": "deepspeed", "script": "pretrain.py", "args": args, "deepspeed": table}
    job["resources"] = {"nodes": 48, "gpus_per_node": 8}
    resolved = config.load_job(write_job(folder, tomli_w.dumps(job)), cluster="pod")
    lock = make_lock()
    held = {"torch": "2", "deepspeed": "0"}
    return plan(
        resolved, lock.model_copy(update={"packages": lock.packages.model_copy(update={"pip": held})}), make_site()
    )


def test_a_launchers_first_shape_is_the_jobs_where_it_says_none(tmp_path: Path) -> None:
    made = plan_of(
        write_job(tmp_path, 'name = "x"\nlauncher = "deepspeed"\nimage = "train-cpu"\nscript = "train.py"\n')
    )
    assert "readonly KIT_SHAPE=srun\n" in made.text_of("worker.sh")


def test_deepspeed_table_becomes_the_json_that_the_program_gets(tmp_path: Path) -> None:
    job = {**BASE, "launcher": "deepspeed", "deepspeed": {"train_batch_size": 32, "zero_optimization": {"stage": 3}}}
    resolved = config.load_job(write_job(tmp_path, tomli_w.dumps(job)), cluster="local")
    lock = make_lock()
    lock = lock.model_copy(
        update={"packages": lock.packages.model_copy(update={"pip": {"torch": "2", "deepspeed": "0"}})}
    )
    made = plan(resolved, lock, make_site())
    written = json.loads(made.text_of("ds_config.json"))
    assert written["train_micro_batch_size_per_gpu"] == 8
    assert "--ds-config\n    /kit/run/ds_config.json" in made.text_of("program.sh")
    assert made.allocation.tasks_per_node == 2, "one task per rank"


def test_an_image_without_the_framework_is_refused_from_its_lock(tmp_path: Path) -> None:
    job = write_job(tmp_path, tomli_w.dumps({**BASE, "launcher": "deepspeed"}))
    with pytest.raises(ConfigError, match="lacks deepspeed"):
        plan_of(job)


@pytest.mark.parametrize(
    ("table", "key", "said"),
    [
        ({"tensor_model_parallel_size": 3, "num_attention_heads": 12}, "tensor_model_parallel_size", "world size, 4"),
        (
            {"tensor_model_parallel_size": 4, "num_attention_heads": 6, "hidden_size": 768},
            "num_attention_heads",
            "over 4 tensor parallel ranks",
        ),
        ({"pipeline_model_parallel_size": 4, "num_layers": 6}, "num_layers", "4 pipeline stages"),
        ({"micro_batch_size": 3, "global_batch_size": 8}, "global_batch_size", "4 data parallel ranks = 12"),
        (
            {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 4},
            "num_layers_per_virtual_pipeline_stage",
            "4 does not divide the 6 layers of a pipeline stage",
        ),
        (
            {"pipeline_model_parallel_size": 2, "num_virtual_stages_per_pipeline_rank": 4},
            "num_virtual_stages_per_pipeline_rank",
            "12 layers cannot be split into 2 pipeline x 4 virtual stages",
        ),
        ({"of_another_release": 1}, "of_another_release", "has such an option. One of your own goes into args"),
        ({"expert_model_parallel_size": 2}, "expert_model_parallel_size", "num_experts is not set"),
        (
            {"expert_model_parallel_size": 3, "num_experts": 3},
            "expert_model_parallel_size",
            "the 4 data x context parallel ranks",
        ),
        ({"context_parallel_size": 2, "seq_length": 1026}, "seq_length", "a multiple of 2 x"),
        ({"hidden_size": 100, "num_attention_heads": 12}, "hidden_size", "num_attention_heads, 12"),
        ({"save": "/kit/run/checkpoints"}, "save", "save_interval"),
        ({"num_query_groups": 5}, "num_query_groups", "num_attention_heads, 12"),
        ({"max_position_embeddings": 512}, "max_position_embeddings", "seq_length, 1024"),
        ({"num_experts": 4, "tensor_model_parallel_size": 2}, "sequence_parallel", "true"),
        ({"lr": 1e-5, "min_lr": 1e-4}, "min_lr", "is above lr"),
        ({"train_samples": 100}, "train_iters", "both given"),
        ({"overlap_param_gather": True, "overlap_grad_reduce": True}, "overlap_param_gather", "distributed_optimizer"),
        ({"mock_data": True, "data_path": "/data/x"}, "data_path", "one source"),
        ({"tokenizer_type": "HuggingFaceTokenizer"}, "tokenizer_model", "HuggingFaceTokenizer needs it"),
        ({"lr_warmpup_fraction": 0.1}, "lr_warmpup_fraction", "lr_warmup_fraction"),
        ({"lr": True}, "lr", "a value"),
        ({"swiglu": "yes"}, "swiglu", "true or false"),
    ],
)
def test_megatron_refuses(tmp_path: Path, table: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        megatron_plan(tmp_path, table)
    assert said in keys_of(caught)[f"megatron.{key}"]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"tensor_model_parallel_size": 2}, "--tensor-model-parallel-size\n    2"),
        ({"sequence_parallel": True, "tensor_model_parallel_size": 2}, "--sequence-parallel\n    --"),
        ({"lr": 1e-4}, "--lr\n    0.0001"),
        ({"split": [9, 1, 0]}, "--split\n    9,1,0"),
        (
            {"data_path": ["0.5", "/data/a", "0.5", "/data/b"]},
            "--data-path\n    0.5\n    /data/a\n    0.5\n    /data/b",
        ),
        ({"masked_softmax_fusion": False}, "--no-masked-softmax-fusion"),
        ({"add_bias_linear": False}, "--disable-bias-linear"),
        ({"ckpt_fully_parallel_save": False}, "--no-ckpt-fully-parallel-save"),
        ({"rl_partial_rollouts": False}, "--no-rl-partial-rollouts"),
        ({"no_rl_partial_rollouts": True}, "--no-rl-partial-rollouts"),
        ({"step_batch_size_schedule": "0:768 250B:1536"}, "--step-batch-size-schedule\n    '0:768 250B:1536'"),
        ({"num_query_groups": 4}, "--group-query-attention"),
        ({"save": "/x", "save_interval": 5}, "--exit-signal-handler"),
    ],
)
def test_megatron_options(tmp_path: Path, table: dict[str, Any], words: str) -> None:
    assert words in megatron_plan(tmp_path, table)


KNOBS = {
    "num_layers": 8,
    "hidden_size": 512,
    "ffn_hidden_size": 2048,
    "num_attention_heads": 8,
    "seq_length": 256,
    "tensor_model_parallel_size": 2,
    "context_parallel_size": 2,
    "pipeline_model_parallel_size": 1,
    "micro_batch_size": 2,
    "global_batch_size": 16,
    "lr": 0.0003,
    "min_lr": 3e-05,
}


def test_every_knob_of_a_pretraining_is_an_option(tmp_path: Path) -> None:
    text = megatron_plan(tmp_path, {**KNOBS, "mock_data": True})
    for key, value in KNOBS.items():
        assert f"    --{key.replace('_', '-')}\n    {value}\n" in text
    assert "    --mock-data\n" in text


def test_megatron_options_that_say_nothing(tmp_path: Path) -> None:
    text = megatron_plan(tmp_path, {"mock_data": False, "masked_softmax_fusion": True})
    assert "mock-data" not in text
    assert "softmax-fusion" not in text


def test_megatron_saves_as_the_checkpoint_table_says(tmp_path: Path) -> None:
    text = megatron_plan(tmp_path, {}, checkpoint={"every": 20, "async": True})
    assert "--save\n    /kit/run/checkpoints\n    --load\n    /kit/run/checkpoints\n    --save-interval\n    20" in text
    assert "--async-save\n    --use-persistent-ckpt-worker" in text
    with pytest.raises(ConfigError, match="save_retain_interval"):
        megatron_plan(tmp_path, {}, checkpoint={"every": 20, "keep": 2})


def test_fsdp_of_megatron_wants_more_connections(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"env\.CUDA_DEVICE_MAX_CONNECTIONS"):
        megatron_plan(tmp_path, {"use_megatron_fsdp": True})


def megatron_plan(tmp_path: Path, table: dict[str, Any], **keys: Any) -> str:
    """program.sh of a job on the launcher for Megatron-LM's own program."""
    table = {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "train_iters": 10, **table}
    job = {**BASE, "launcher": "megatron-lm", "script": "pretrain_gpt.py", "megatron": table, **keys}
    resolved = config.load_job(write_job(tmp_path, tomli_w.dumps(job)), cluster="local")
    return plan(resolved, make_lock(), make_site()).text_of("program.sh")


TABLES = sorted({table for name in get_args(FrameworkName) for table in frameworks.get(name).tables})


def test_the_tables_that_only_a_framework_reads_are_named() -> None:
    """So no framework is imported for a job without any of them."""
    assert set(TABLES) == set(FRAMEWORK_TABLES)


@pytest.mark.parametrize("launcher", sorted(path.parent.name for path in (REPO / "launchers").glob("*/launcher.toml")))
def test_a_table_that_the_launcher_does_not_read_is_refused(tmp_path: Path, launcher: str) -> None:
    """`[diloco]` beside launcher ddp was ignored."""
    chosen = config.load_model(REPO / "launchers" / launcher / "launcher.toml", Launcher)
    own = frameworks.get(chosen.framework).tables if chosen.framework else ()
    assert TABLES == ["deepspeed", "diloco", "megatron", "rl", "sft"]
    for table in TABLES:
        shape = "replicas" if "replicas" in chosen.shapes else chosen.shapes[0]
        content = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 2} if table == "megatron" else {}
        job = {
            "name": "x",
            "image": "train-cpu",
            "launcher": launcher,
            "script": "x.py",
            "shape": shape,
            table: content,
        }
        role = '[roles.one]\ncommand = ["x"]\n' if launcher == "roles" else ""
        try:
            plan_of(write_job(tmp_path, tomli_w.dumps(job) + role))
        except ConfigError as error:
            refused = {fault.key for fault in error.faults if "does not read this table" in fault.problem}
            assert refused == ({table} if table not in own else set()), error
        else:
            assert table in own


def test_replica_groups_of_titan_need_their_start_shape(tmp_path: Path) -> None:
    job = {**BASE, "launcher": "torchtitan", "shape": "torchrun", "diloco": {"replicas_per_node": 2}}
    with pytest.raises(ConfigError, match="diloco: the start shape 'torchrun' has no replica groups"):
        plan_of(write_job(tmp_path, tomli_w.dumps(job)))


def test_checkpoint_and_profile_reach_the_program(tmp_path: Path) -> None:
    job = {
        **BASE,
        "launcher": "ddp",
        "checkpoint": {"every": 5, "async": True},
        "profile": {"steps": "3-4", "ranks": [0, 2]},
    }
    text = plan_of(write_job(tmp_path, tomli_w.dumps(job))).text_of("program.sh")
    for pair in ("KIT_CHECKPOINT_EVERY=5", "KIT_CHECKPOINT_ASYNC=1", "KIT_PROFILE_STEPS=3-4", "KIT_PROFILE_RANKS=0,2"):
        assert pair in text


def test_trackers_are_asked_for_in_one_line_and_have_the_runs_id(tmp_path: Path) -> None:
    """The variables are wandb's own, so that every start of the run, and a user's own program, are one run there."""
    table = {"tensorboard": True, "wandb": {"project": "a b", "mode": "offline"}}
    made = plan_of(
        write_job(tmp_path, tomli_w.dumps({**BASE, "launcher": "ddp", "script": "train.py", "metrics": table}))
    )
    text = made.text_of("program.sh")
    told = {"KIT_TENSORBOARD": "1", "KIT_WANDB": "1", "WANDB_MODE": "offline", "WANDB_RESUME": "allow"}
    for name, value in {**told, "WANDB_RUN_ID": made.run_id, "WANDB_DIR": "/kit/run"}.items():
        assert f"{name}={value}" in text
    assert "WANDB_PROJECT=a b" in text
    assert "WANDB_ENTITY" not in text
    assert "WANDB" not in plan_of(
        write_job(tmp_path, tomli_w.dumps({**BASE, "launcher": "ddp", "script": "train.py"}))
    ).text_of("program.sh")


def test_an_image_without_the_tracker_is_refused_for_the_kits_own_programs(tmp_path: Path) -> None:
    job = {**BASE, "launcher": "ddp", "metrics": {"wandb": {"project": "p"}}}
    with pytest.raises(ConfigError, match="lacks wandb"):
        plan_of(write_job(tmp_path, tomli_w.dumps(job)))
    with pytest.raises(ConfigError, match=r"metrics\.wandb\.project"):
        config.load_job(
            write_job(tmp_path, tomli_w.dumps({**job, "metrics": {"wandb": {"mode": "offline"}}})), cluster="local"
        )


@pytest.mark.parametrize(
    ("launcher", "args", "said"),
    [
        (
            "ddp",
            ["--batch-size", "30"],
            "--batch-size 30 cannot be shared out evenly over 4 data parallel ranks x 1 accumulation steps\n  try: --batch-size 32",
        ),
        (
            "ddp",
            ["--accumulate=3"],
            "--batch-size 64 cannot be shared out evenly over 4 data parallel ranks x 3 accumulation steps",
        ),
        ("fsdp", ["--replicate", "3"], "--replicate 3 does not divide the world size, 4"),
        (
            "megatron",
            ["--tp", "2", "--pp", "3"],
            "--tp 2 x --pp 3 x --cp 1 = 6 does not divide the world size, 4",
        ),
        ("megatron", ["--tp", "2", "--heads", "3"], "--tp 2 does not divide --heads 3\n  try: --heads 4"),
        ("megatron", ["--tp", "4", "--kv-heads", "2"], "--tp 4 does not divide --kv-heads 2"),
        ("megatron", ["--kv-heads", "3"], "--kv-heads 3 does not divide --heads 4\n  try: --kv-heads 2"),
        ("megatron", ["--pp", "4", "--layers", "6"], "--pp 4 does not divide --layers 6\n  try: --layers 8"),
        ("megatron", ["--cp", "2"], "--cp needs --transformer-engine"),
        ("megatron", ["--sequence-parallel", "--transformer-engine"], "--sequence-parallel needs tensor parallelism"),
        (
            "megatron",
            ["--sequence-parallel", "--transformer-engine", "--tp", "4", "--context", "126"],
            "--tp 4 does not divide --context 126",
        ),
        ("megatron", ["--tp", "0"], "--tp 0 is too small: 1 is the least"),
        ("megatron", ["--tp", "two"], "--tp takes a whole number"),
        ("fsdp", ["--dim", "30"], "--dim 30 is not a multiple of 2 x --heads 4"),
        ("deepspeed", ["--batch-size=32"], "with [deepspeed], --batch-size is not read"),
        ("deepspeed", ["--dim", "36", "--heads=8"], "--dim 36 is not a multiple of 2 x --heads 8"),
    ],
)
def test_what_the_launchers_own_programs_would_refuse(
    tmp_path: Path, launcher: str, args: list[str], said: str
) -> None:
    job = {**BASE, "launcher": launcher, "args": args}
    resolved = config.load_job(write_job(tmp_path / "a", tomli_w.dumps(job)), cluster="local")
    lock = make_lock()
    held = {"torch": "2", "megatron-core": "0", "deepspeed": "0"}
    lock = lock.model_copy(update={"packages": lock.packages.model_copy(update={"pip": held})})
    with pytest.raises(ConfigError) as caught:
        plan(resolved, lock, make_site())
    assert f"job.toml: args: {said}" in str(caught.value)
    own = write_job(tmp_path / "b", tomli_w.dumps({**job, "script": "train.py"}))
    assert plan_of(own).allocation.world_size == 4, "a program of one's own has its own options"
