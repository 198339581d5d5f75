"""Gives what the kit renders for Megatron-LM to Megatron-LM's own parser and validator: they accept all that is submitted.

    MEGATRON_LM=/path/to/Megatron-LM pytest tests/training/test_megatron_lm.py

The checkout is of a release that the launcher knows, core_v0.16 or later;
launchers/megatron-lm/run.py finds its own by the same variable.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import config
from kit.allocation import allocate
from kit.config import Resolved
from kit.errors import ConfigError
from kit.frameworks import megatron, megatron_options, megatron_rules, prepare_extra
from kit.schema.launcher import Launcher
from tests.support import REPO, write_job

CHECKOUT = Path(os.environ.get("MEGATRON_LM", "/opt/Megatron-LM"))
PROGRAM = Path(__file__).with_name("megatron_lm.py")
LACKING = [name for name in ("torch", "six", "einops", "regex", "yaml") if importlib.util.find_spec(name) is None]


def known_releases() -> tuple[str, ...]:
    """Those of the launcher."""
    releases = config.load_model(REPO / "launchers" / "megatron-lm" / "launcher.toml", Launcher).releases
    assert releases
    return releases.known


def release() -> str:
    """Of the checkout, as the launcher has it."""
    info = (CHECKOUT / "megatron" / "core" / "package_info.py").read_text(encoding="utf-8")
    return ".".join(re.findall(r"^(?:MAJOR|MINOR) = (\d+)$", info, re.MULTILINE))


def why_not() -> str:
    """What is missing to ask Megatron-LM; empty when nothing is."""
    if not (CHECKOUT / "pretrain_gpt.py").is_file():
        return "no checkout of Megatron-LM: MEGATRON_LM names none"
    info = (CHECKOUT / "megatron" / "core" / "package_info.py").read_text(encoding="utf-8")
    numbers = re.findall(r"^(?:MAJOR|MINOR|PATCH) = (\d+)$", info, re.MULTILINE)
    if ".".join(numbers[:2]) not in known_releases():
        return f"the checkout of Megatron-LM is of release {'.'.join(numbers)}; known are {', '.join(known_releases())}"
    return f"Megatron-LM needs what is not installed: {', '.join(LACKING)}" if LACKING else ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

Ask = Callable[[list[str], int, dict[str, str]], str | None]
SAVED = {"checkpoint": {"every": 20}}
MOCK = {"mock_data": True, "tokenizer_type": "NullTokenizer", "vocab_size": 50304}
LLAMA = {
    "num_layers": 32,
    "hidden_size": 4096,
    "ffn_hidden_size": 14336,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "seq_length": 8192,
    "normalization": "RMSNorm",
    "norm_epsilon": 1e-5,
    "position_embedding_type": "rope",
    "rotary_base": 500000,
    "swiglu": True,
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "init_method_std": 0.02,
    # It is Transformer Engine's, which a machine without GPUs has not.
    "apply_rope_fusion": False,
    "bf16": True,
}
MOE = {"num_experts": 8, "moe_router_topk": 2, "moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.01}


def wide(tp: int = 1, pp: int = 1, cp: int = 1, ep: int = 1) -> dict[str, int]:
    sizes = {"tensor_model": tp, "pipeline_model": pp, "context": cp, "expert_model": ep}
    return {f"{kind}_parallel_size": size for kind, size in sizes.items()}


# Name -> nodes of eight GPUs, the [megatron] table, other keys of the job.
ACCEPTED: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "as little as can be": (1, {}, {}),
    "no learning rate": (1, {"lr_decay_style": "constant"}, {}),
    "sequence parallel on one rank, which Megatron-LM switches off": (1, {"sequence_parallel": True}, {}),
    "virtual stages": (2, {**wide(pp=2), "num_layers": 24, "num_virtual_stages_per_pipeline_rank": 3}, {}),
    "virtual stages of one layer": (2, {**wide(pp=4), "num_layers_per_virtual_pipeline_stage": 1}, {}),
    "one virtual stage": (2, {**wide(pp=4), "num_layers_per_virtual_pipeline_stage": 3}, {}),
    "dense, data parallel": (2, {"global_batch_size": 64, "bf16": True, **MOCK}, SAVED),
    "tensor and sequence parallel": (2, {**wide(tp=4), "sequence_parallel": True, "fp16": True, **MOCK}, SAVED),
    "pipeline parallel": (2, {**wide(tp=2, pp=4), "global_batch_size": 32, **MOCK}, {}),
    "interleaved pipeline": (2, {**wide(pp=4), "num_layers": 24, "num_layers_per_virtual_pipeline_stage": 2}, {}),
    "uneven pipeline": (
        2,
        {**wide(pp=4), "num_layers": 30, "decoder_first_pipeline_num_layers": 7, "decoder_last_pipeline_num_layers": 7},
        {},
    ),
    "embedding as a layer": (
        1,
        {**wide(pp=4), "num_layers": 10}
        | {f"account_for_{what}_in_pipeline_split": True for what in ("embedding", "loss")},
        {},
    ),
    "context parallel": (2, {**LLAMA, **wide(tp=2, cp=4), "sequence_parallel": True}, {}),
    "grouped queries": (4, {**LLAMA, **wide(tp=4, pp=2), "sequence_parallel": True, "global_batch_size": 128}, SAVED),
    "experts": (2, {**MOE, **wide(ep=4), "global_batch_size": 32}, {}),
    "experts with tensor parallel": (4, {**LLAMA, **MOE, **wide(tp=2, ep=8), "sequence_parallel": True}, SAVED),
    "experts of another tensor parallel size": (
        2,
        {**MOE, **wide(tp=2, ep=8), "expert_tensor_parallel_size": 1, "sequence_parallel": True},
        {},
    ),
    "experts, all of them": (
        4,
        {**LLAMA, **MOE, **wide(tp=2, pp=2, ep=4), "sequence_parallel": True, "moe_token_dispatcher_type": "alltoall"}
        | {"moe_layer_freq": "([0]*2+[1]*30)", "moe_shared_expert_intermediate_size": 2048, "global_batch_size": 64},
        {},
    ),
    "distributed optimizer": (
        2,
        {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True, "bf16": True},
        SAVED,
    ),
    "optimizer and schedule": (
        1,
        {"lr": 3e-4, "min_lr": 3e-5, "lr_decay_style": "cosine", "lr_warmup_iters": 10, "lr_decay_iters": 100}
        | {"weight_decay": 0.1, "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, "clip_grad": 1.0},
        {},
    ),
    "by samples": (
        1,
        {
            "train_samples": 10**6,
            "lr_decay_samples": 9 * 10**5,
            "lr_warmup_samples": 1000,
            "rampup_batch_size": [8, 8, 100],
        }
        | {"global_batch_size": 64},
        {},
    ),
    "recomputed": (1, {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}, {}),
    "fusions switched off": (
        1,
        {f"{what}_fusion": False for what in ("masked_softmax", "bias_gelu", "bias_dropout", "gradient_accumulation")},
        {},
    ),
    "checkpoints of its own": (
        1,
        {"save": "/ckpt", "load": "/ckpt", "save_interval": 100, "ckpt_format": "torch_dist", "no_load_rng": True}
        | {"ckpt_fully_parallel_save": False, "exit_on_missing_checkpoint": True, "save_retain_interval": 500}
        | {"dist_ckpt_strictness": "log_all", "ckpt_assume_constant_structure": True, "auto_detect_ckpt_format": True},
        {},
    ),
    "saved in the background": (1, {}, {"checkpoint": {"every": 20, "async": True, "dir": "/scratch/ckpt"}}),
    "logging": (
        1,
        {
            "log_interval": 5,
            "log_throughput": True,
            "log_params_norm": True,
            "timing_log_level": 2,
            "log_progress": True,
        }
        | {"tensorboard_dir": "/kit/run/tb", "tensorboard_log_interval": 10, "log_timers_to_tensorboard": True}
        | {
            "wandb_project": "p",
            "wandb_exp_name": "e",
            "wandb_save_dir": "/kit/run/wandb",
            "log_memory_to_tensorboard": True,
        }
        | {"log_loss_scale_to_tensorboard": False, "eval_interval": 50, "eval_iters": 5},
        {},
    ),
    "profiled": (1, {"profile": True, "profile_step_start": 5, "profile_step_end": 7, "profile_ranks": [0, 3]}, {}),
    "GPT-2's tokenizer": (
        1,
        {"tokenizer_type": "GPT2BPETokenizer", "vocab_file": "/data/vocab.json", "merge_file": "/data/merges.txt"},
        {},
    ),
    "a tokenizer of Hugging Face": (1, {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "a/b"}, {}),
    "a blend of data": (
        1,
        {"data_path": [0.3, "/data/a_text_document", 0.7, "/data/b_text_document"], "split": [98, 1, 1]}
        | {"data_cache_path": "/cache", "num_workers": 4, "mmap_bin_files": False, "reset_position_ids": True},
        {},
    ),
    "data by split": (
        1,
        {
            "train_data_path": ["/data/t"],
            "valid_data_path": "/data/v",
            "test_data_path": ["/data/e"],
            "eod_mask_loss": True,
        },
        {},
    ),
    "torch's FSDP": (
        1,
        {"use_torch_fsdp2": True, "untie_embeddings_and_output_weights": True, "gradient_accumulation_fusion": False},
        {"env": {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}},
    ),
}

# What is not accepted is refused before submit, too. Each changes one thing of a table that is.
REFUSED: dict[str, dict[str, Any]] = {
    "world size": wide(tp=3, pp=2),
    "layers": wide(pp=8),
    "batch": {"micro_batch_size": 3, "global_batch_size": 16},
    "experts": {**MOE, **wide(ep=3)},
    "ranks of experts": {"num_experts": 32, **wide(ep=32)},
    "no experts": wide(ep=2),
    "sequence": {**wide(cp=4), "seq_length": 1028},
    "positions": {"max_position_embeddings": 512},
    "heads": {"hidden_size": 100},
    "groups": {"num_query_groups": 5},
    "groups and ranks": {"num_query_groups": 3, **wide(tp=4), "num_attention_heads": 12},
    "half": {"fp16": True, "bf16": True},
    "learning rate": {"lr": 1e-5, "min_lr": 1e-4},
    "steps and samples": {"train_iters": 100, "train_samples": 1000},
    "warm-up": {"lr_warmup_fraction": 0.1, "lr_warmup_iters": 10},
    "save": {"save": "/ckpt"},
    "gather": {"overlap_param_gather": True, "overlap_grad_reduce": True},
    "data": {"mock_data": True, "data_path": "/data/a"},
    "FSDP": {
        "use_torch_fsdp2": True,
        "untie_embeddings_and_output_weights": True,
        "gradient_accumulation_fusion": False,
    },
    "a switch": {"lr": True},
    "a value": {"swiglu": "yes"},
    "a typing error": {"lr_warmpup_fraction": 0.01},
    "an option that is not there": {"of_another_release": 1},
    "virtual stages that do not divide": {**wide(pp=4), "num_layers_per_virtual_pipeline_stage": 2},
    "virtual stages of a rank that do not divide": {**wide(pp=4), "num_virtual_stages_per_pipeline_rank": 2},
    "two ways to say virtual stages": {
        **wide(pp=2),
        "num_layers_per_virtual_pipeline_stage": 3,
        "num_virtual_stages_per_pipeline_rank": 2,
    },
    "virtual stages without a pipeline": {"num_layers_per_virtual_pipeline_stage": 3},
    "virtual stages of a rank without a pipeline": {"num_virtual_stages_per_pipeline_rank": 2},
    "virtual stages by hand": {
        **wide(pp=2),
        "decoder_first_pipeline_num_layers": 5,
        "num_layers_per_virtual_pipeline_stage": 3,
    },
}
# Not asked by the validator, but by megatron.core.parallel_state and the attention of TP ranks, which need GPUs to be run.
LATER = {"batch", "groups", "ranks of experts", "virtual stages of a rank that do not divide"}


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Put a command line, the world size and the ranks' environment to Megatron-LM; why it is refused, or None."""
    argv = [sys.executable, str(PROGRAM), str(CHECKOUT), "check"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout

        def put(words: list[str], world_size: int, env: dict[str, str]) -> str | None:
            assert process.stdin and process.stdout
            process.stdin.write(json.dumps({"argv": words, "world_size": world_size, "env": env}) + "\n")
            process.stdin.flush()
            answer: str | None = json.loads(process.stdout.readline())
            return answer

        yield put
        process.stdin.close()


def job(folder: Path, nodes: int, table: dict[str, Any], more: dict[str, Any]) -> Resolved:
    import tomli_w

    content = {
        "name": "x",
        "launcher": "megatron-lm",
        "image": "train-cpu",
        "resources": {"nodes": nodes, "gpus_per_node": 8},
        "megatron": {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12}
        | ({} if "train_samples" in table else {"train_iters": 100})
        | {"global_batch_size": 16 * nodes, **table},
        **more,
    }
    return config.load_job(write_job(folder, tomli_w.dumps(content)), cluster="pod")


def rendered(resolved: Resolved) -> tuple[list[str], int, dict[str, str]]:
    allocation = allocate(resolved)
    made = prepare_extra(resolved, allocation, {"megatron-core": release()})
    return [word.replace("{run}", "/kit/run") for word in made.args], allocation.world_size, dict(resolved.job.env)


@pytest.mark.parametrize("name", ACCEPTED)
def test_megatron_accepts_what_the_kit_renders(name: str, tmp_path: Path, ask: Ask) -> None:
    assert ask(*rendered(job(tmp_path, *ACCEPTED[name]))) is None


def test_megatron_accepts_the_example(ask: Ask) -> None:
    resolved = config.load_job(REPO / "examples" / "megatron-lm" / "job.toml", cluster="local")
    assert ask(*rendered(resolved)) is None


@pytest.mark.parametrize("name", REFUSED)
def test_what_megatron_refuses_the_kit_refuses_first(name: str, tmp_path: Path, ask: Ask) -> None:
    resolved = job(tmp_path, 2, REFUSED[name], {})
    with pytest.raises(ConfigError):
        rendered(resolved)
    if name not in LATER:
        assert resolved.job.megatron is not None
        options = megatron.completed(resolved.job.megatron, resolved.job.checkpoint)
        assert (
            ask(megatron_options.words(options, release()), allocate(resolved).world_size, dict(resolved.job.env))
            is not None
        )


@pytest.mark.parametrize("connections", ["1", "8"])
@pytest.mark.parametrize(
    "table", [wide(), wide(tp=2), wide(cp=2), {**wide(tp=2), "overlap_moe_expert_parallel_comm": True}]
)
def test_connections_are_judged_as_megatron_judges_them(
    table: dict[str, Any], connections: str, tmp_path: Path, ask: Ask
) -> None:
    """Eight connections with TP 2 were accepted, and stopped all ranks."""
    resolved = job(tmp_path, 1, {**LLAMA, **table}, {"env": {"CUDA_DEVICE_MAX_CONNECTIONS": connections}})
    assert resolved.job.megatron is not None
    options = megatron.completed(resolved.job.megatron, resolved.job.checkpoint)
    refused = [*megatron._environment(options, dict(resolved.job.env), by_run_py=False)]
    said = ask(megatron_options.words(options, release()), 8, dict(resolved.job.env))
    assert bool(refused) == ("CUDA_DEVICE_MAX_CONNECTIONS" in (said or ""))


@pytest.mark.parametrize("key", ["num_layers", "hidden_size", "num_attention_heads"])
def test_a_shape_without_a_key_is_refused_by_both(key: str, ask: Ask) -> None:
    """A forgotten num_layers trained 12 layers of 768."""
    from kit.schema.checkpoint_and_tracking import MegatronArguments

    shape: dict[str, Any] = {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12}
    del shape[key]
    with pytest.raises(ValueError, match=key):
        MegatronArguments(**shape)
    given = {**shape, "seq_length": 64, "max_position_embeddings": 64, "micro_batch_size": 1, "train_iters": 1}
    named = "num-layers" if key == "num_layers" else key
    assert named in str(ask(megatron_options.words(given, release()), 1, {}))


def test_the_options_are_those_of_the_parser() -> None:
    argv = [sys.executable, str(PROGRAM), str(CHECKOUT), "options"]
    told = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    known = megatron_options.known(release())
    assert {kind: sorted(known[kind]) for kind in ("value", "several", "both")} == {
        kind: told[kind] for kind in ("value", "several", "both")
    }
    assert known["bare"] - {f"no_{name}" for name in known["both"]} == set(told["bare"])
    assert told["off"].items() <= known["off"].items()


def test_a_table_without_a_fault_breaks_no_rule(tmp_path: Path) -> None:
    for number, (nodes, table, more) in enumerate(ACCEPTED.values()):
        resolved = job(tmp_path / str(number), nodes, table, more)
        assert resolved.job.megatron is not None
        options = megatron.completed(resolved.job.megatron, resolved.job.checkpoint)
        assert [*megatron_rules.broken(options, 8 * nodes)] == []
