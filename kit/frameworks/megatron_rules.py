"""Megatron-LM's rules: what its validate_args, its model configuration and megatron.core.parallel_state would refuse.

Each of them would stop the job after it had its nodes. tests/training/test_megatron_lm.py puts such tables to Megatron-LM itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Key, what it is, what is allowed.
Broken = tuple[str, object, str]

# Layers are dealt out by hand where one of these is given.
_UNEVEN = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "pipeline_model_parallel_layout")
# What a tokenizer cannot be built without.
_TOKENIZERS = {
    "NullTokenizer": ("vocab_size",),
    "HuggingFaceTokenizer": ("tokenizer_model",),
    "SentencePieceTokenizer": ("tokenizer_model",),
    "GPTSentencePieceTokenizer": ("tokenizer_model",),
    "Llama2Tokenizer": ("tokenizer_model",),
    "TikTokenizer": ("tokenizer_model",),
}


def broken(options: Mapping[str, Any], world_size: int) -> Iterator[Broken]:
    """Every rule that the options break."""
    yield from _ranks(options, world_size)
    yield from _model(options)
    yield from _experts(options)
    yield from _training(options)
    yield from _data(options)


def _sizes(options: Mapping[str, Any]) -> tuple[int, int, int]:
    tp, pp, cp = (options[f"{kind}_parallel_size"] for kind in ("tensor_model", "pipeline_model", "context"))
    return tp, pp, cp


def _ranks(options: Mapping[str, Any], world_size: int) -> Iterator[Broken]:
    """TP x PP x CP x DP is the world; experts share the ranks of a pipeline stage; a batch is dealt out evenly."""
    tp, pp, cp = _sizes(options)
    model = tp * pp * cp
    if world_size % model:
        got = f"{tp} x PP {pp} x CP {cp} = {model}"
        yield "tensor_model_parallel_size", got, f"a divisor of the world size, {world_size}"
        return
    data = world_size // model
    experts, tp_of_experts = options["expert_model_parallel_size"], options.get("expert_tensor_parallel_size", tp)
    if (world_size // pp) % (experts * tp_of_experts):
        allowed = f"a divisor of data x context parallel ranks, {data * cp}"
        if tp_of_experts != tp:
            allowed = f"with expert_tensor_parallel_size {tp_of_experts}, a divisor of the {world_size // pp} ranks of a stage"
        yield "expert_model_parallel_size", experts, allowed
    micro, whole = options["micro_batch_size"], options["global_batch_size"]
    if whole % (micro * data):
        got = f"{whole} with micro batch {micro} on {data} data parallel ranks"
        yield "global_batch_size", got, f"a multiple of {micro * data}"


def _model(options: Mapping[str, Any]) -> Iterator[Broken]:
    """What the ranks of a layout share must come apart evenly."""
    tp, pp, cp = _sizes(options)
    heads, hidden, groups = options["num_attention_heads"], options["hidden_size"], options.get("num_query_groups")
    if heads % tp:
        yield "num_attention_heads", heads, f"a multiple of the tensor parallel size, {tp}"
    if groups and heads % groups:
        yield "num_query_groups", groups, f"a divisor of num_attention_heads, {heads}"
    elif groups and groups % tp and tp % groups:  # fewer groups than ranks: each is on several
        yield "num_query_groups", groups, f"a multiple or a divisor of the tensor parallel size, {tp}"
    if hidden % heads and "kv_channels" not in options:
        yield "hidden_size", hidden, f"a multiple of num_attention_heads, {heads}"
    layers = options["num_layers"] + sum(
        bool(options.get(f"account_for_{what}_in_pipeline_split")) for what in ("embedding", "loss")
    )
    if layers % pp and not any(key in options for key in _UNEVEN):
        yield "num_layers", layers, f"a multiple of the pipeline parallel size, {pp}"
    length, positions = options["seq_length"], options["max_position_embeddings"]
    if cp > 1 and length % (2 * cp):
        yield "seq_length", length, f"a multiple of 2 x context parallel size, {2 * cp}"
    if positions < length:
        yield "max_position_embeddings", positions, f"at least seq_length, {length}"


def _experts(options: Mapping[str, Any]) -> Iterator[Broken]:
    tp, ep, experts = _sizes(options)[0], options["expert_model_parallel_size"], options.get("num_experts")
    if options["sequence_parallel"] and tp == 1:
        yield "sequence_parallel", "true", "with a tensor parallel size above 1"
    if ep > 1 and not experts:
        yield "expert_model_parallel_size", ep, "1, unless num_experts is set"
    elif experts and experts % ep:
        yield "num_experts", experts, f"a multiple of the expert parallel size, {ep}"
    # megatron.core's MoELayer raises it in the first forward.
    if experts and tp > 1 and not options["sequence_parallel"]:
        yield "sequence_parallel", "false, with experts and tensor parallelism", "true"


def _training(options: Mapping[str, Any]) -> Iterator[Broken]:
    """Options that need, or exclude, one another."""
    if options.get("fp16") and options.get("bf16"):
        yield "bf16", "true, and fp16 too", "one of them"
    if options.get("lr") is not None and options.get("min_lr", 0) > options["lr"]:
        yield "min_lr", options["min_lr"], f"at most lr, {options['lr']}"
    lengths = [key for key in ("train_iters", "train_samples") if options.get(key)]
    if len(lengths) != 1 and not options.get("skip_train"):
        yield "train_iters", " and ".join(lengths) or "nothing", "either train_iters or train_samples"
    if options.get("lr_warmup_fraction") is not None:
        for key in ("lr_warmup_iters", "lr_warmup_samples"):
            if options.get(key):
                yield key, options[key], "without lr_warmup_fraction"
    if "save" in options and not options.get("save_interval"):
        yield "save", options["save"], "with save_interval: Megatron-LM refuses one without the other"
    if options.get("overlap_param_gather"):
        if not (options.get("use_distributed_optimizer") or options.get("use_megatron_fsdp")):
            yield "overlap_param_gather", "true", "with use_distributed_optimizer"
        if not options.get("overlap_grad_reduce"):
            yield "overlap_param_gather", "true", "with overlap_grad_reduce"


def _data(options: Mapping[str, Any]) -> Iterator[Broken]:
    given = [key for key in ("mock_data", "data_path") if options.get(key)]
    given += [key for key in ("train_data_path", "valid_data_path", "test_data_path") if options.get(key)][:1]
    if len(given) > 1:
        yield given[1], f"given, and {given[0]} too", "one source of data"
    tokenizer = options.get("tokenizer_type")
    for key in _TOKENIZERS.get(str(tokenizer), ()):
        if options.get(key) is None:
            yield key, "nothing", f"a value: {tokenizer} needs it"
