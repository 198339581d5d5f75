"""Megatron-LM's rules: options that its validate_args, its model configuration and megatron.core.parallel_state refuse.

Each broken rule would stop the job after it had its nodes. tests/training/test_megatron_lm.py gives the same options to
Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kit.errors import Fault
from kit.frameworks.nearest_multiple_or_divisor import divisor, multiple

# With one of these options, the user assigns layers to stages by hand.
_UNEVEN = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "pipeline_model_parallel_layout")
_VIRTUAL = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")
# Numbers that the rules compute with and that have no key of their own in the [megatron] table.
_NUMBERS = (
    "lr", "min_lr", "num_experts", "num_query_groups", "global_batch_size", "expert_tensor_parallel_size", *_UNEVEN[:2], *_VIRTUAL,
)  # fmt: skip
# The options that each tokenizer needs.
_TOKENIZERS = {
    "NullTokenizer": ("vocab_size",),
    "HuggingFaceTokenizer": ("tokenizer_model",),
    "SentencePieceTokenizer": ("tokenizer_model",),
    "GPTSentencePieceTokenizer": ("tokenizer_model",),
    "Llama2Tokenizer": ("tokenizer_model",),
    "TikTokenizer": ("tokenizer_model",),
}


def broken(options: Mapping[str, Any], world_size: int) -> Iterator[Fault]:
    """One fault for each rule that the options break; of values that are no numbers, only these faults."""
    wrong = [key for key in _NUMBERS if not isinstance(options.get(key, 0), int | float | None)]
    if wrong:
        yield from (_fault(key, f"{options[key]!r} is not a number", f"{key} = 1") for key in wrong)
        return
    yield from _ranks(options, world_size)
    yield from _model(options)
    yield from _experts(options)
    yield from _training(options)
    yield from _data(options)


def _fault(key: str, problem: str, hint: str) -> Fault:
    return Fault(key=f"megatron.{key}", problem=problem, hint=hint)


def _sizes(options: Mapping[str, Any]) -> tuple[int, int, int]:
    tp, pp, cp = (options[f"{kind}_parallel_size"] for kind in ("tensor_model", "pipeline_model", "context"))
    return tp, pp, cp


def _ranks(options: Mapping[str, Any], world_size: int) -> Iterator[Fault]:
    """TP x PP x CP x DP must be the world size, experts must divide the ranks of a pipeline stage, and DP must divide the batch."""
    tp, pp, cp = _sizes(options)
    model = tp * pp * cp
    if world_size % model:
        problem = f"TP {tp} x PP {pp} x CP {cp} = {model} does not divide the world size, {world_size}"
        yield _fault("tensor_model_parallel_size", problem, f"tensor_model_parallel_size = {divisor(tp, world_size)}")
        return
    data = world_size // model
    experts, tp_of_experts = options["expert_model_parallel_size"], options.get("expert_tensor_parallel_size", tp)
    if (world_size // pp) % (experts * tp_of_experts):
        problem, most = f"{experts} does not divide the {data * cp} data x context parallel ranks", data * cp
        if tp_of_experts != tp:
            product, most = (
                f"{experts} x expert_tensor_parallel_size {tp_of_experts}",
                world_size // pp // tp_of_experts,
            )
            problem = f"{product} does not divide the {world_size // pp} ranks of a pipeline stage"
        hint = f"expert_model_parallel_size = {divisor(experts, max(1, most))}"
        yield _fault("expert_model_parallel_size", problem, hint)
    micro, whole = options["micro_batch_size"], options.get("global_batch_size", 0)
    if whole % (micro * data):
        problem = f"{whole} is not a multiple of micro batch {micro} x {data} data parallel ranks = {micro * data}"
        yield _fault("global_batch_size", problem, f"global_batch_size = {multiple(whole, micro * data)}")


def _model(options: Mapping[str, Any]) -> Iterator[Fault]:
    """Sizes that ranks share, such as heads and layers, must divide evenly."""
    tp, pp, cp = _sizes(options)
    heads, hidden, groups = options["num_attention_heads"], options["hidden_size"], options.get("num_query_groups")
    if heads % tp:
        problem = f"{heads} heads cannot be shared out evenly over {tp} tensor parallel ranks"
        yield _fault("num_attention_heads", problem, f"num_attention_heads = {multiple(heads, tp)}")
    if groups and heads % groups:
        problem = f"{groups} does not divide num_attention_heads, {heads}"
        yield _fault("num_query_groups", problem, f"num_query_groups = {divisor(groups, heads)}")
    elif groups and groups % tp and tp % groups:  # with fewer groups than ranks, several ranks hold the same group
        problem = f"{groups} is neither a multiple nor a divisor of the {tp} tensor parallel ranks"
        yield _fault("num_query_groups", problem, f"num_query_groups = {divisor(groups, tp)}")
    if hidden % heads and "kv_channels" not in options:
        problem = f"{hidden} is not a multiple of num_attention_heads, {heads}"
        yield _fault("hidden_size", problem, f"hidden_size = {multiple(hidden, heads)}")
    layers = options["num_layers"] + sum(
        bool(options.get(f"account_for_{what}_in_pipeline_split")) for what in ("embedding", "loss")
    )
    if layers % pp and not any(key in options for key in _UNEVEN):
        problem = f"{layers} layers cannot be split into {pp} pipeline stages of one size"
        yield _fault("num_layers", problem, f"num_layers = {multiple(layers, pp) - layers + options['num_layers']}")
    yield from _virtual(options, layers, pp)
    length, positions = options["seq_length"], options["max_position_embeddings"]
    if cp > 1 and length % (2 * cp):
        problem = f"{length} is not a multiple of 2 x {cp} context parallel ranks"
        yield _fault("seq_length", problem, f"seq_length = {multiple(length, 2 * cp)}")
    if positions < length:
        problem = f"{positions} is below seq_length, {length}"
        yield _fault("max_position_embeddings", problem, f"max_position_embeddings = {length}")


def _virtual(options: Mapping[str, Any], layers: int, pp: int) -> Iterator[Fault]:
    """Interleaved schedule: each rank holds several short stages. One option sets their number, and all must have the same size."""
    given = [key for key in (*_VIRTUAL, "pipeline_model_parallel_layout") if options.get(key) is not None]
    if len(given) > 1:
        yield _fault(
            given[1], f"{given[0]} is given too, and one of them says how stages are cut", "remove one of them"
        )
        return
    each, count = (options.get(key) for key in _VIRTUAL)
    by_hand = next((key for key in _UNEVEN[:2] if options.get(key) is not None), None)
    if each is not None and by_hand:
        problem = f"{by_hand} assigns the layers to stages by hand: set the number of stages instead"
        yield _fault(_VIRTUAL[0], problem, f"{_VIRTUAL[1]} = 2")
    elif each is not None and layers % pp == 0 and (each < 1 or (layers // pp) % each):
        problem = f"{each} does not divide the {layers // pp} layers of a pipeline stage"
        yield _fault(_VIRTUAL[0], problem, f"{_VIRTUAL[0]} = {divisor(each, layers // pp)}")
    elif pp == 1 and (count or layers // (each or layers)) > 1:
        key = _VIRTUAL[1] if count else _VIRTUAL[0]
        yield _fault(key, "several stages on a rank need a pipeline of more than one rank", "remove the line")
    elif count is not None and count > 1 and not by_hand and layers % (pp * count):
        problem = f"{layers} layers cannot be split into {pp} pipeline x {count} virtual stages of one size"
        yield _fault(_VIRTUAL[1], problem, f"num_layers = {multiple(options['num_layers'], pp * count)}")


def _experts(options: Mapping[str, Any]) -> Iterator[Fault]:
    tp, ep, experts = _sizes(options)[0], options["expert_model_parallel_size"], options.get("num_experts")
    if ep > 1 and not experts:
        problem = f"{ep} ranks cannot share experts: num_experts is not set"
        yield _fault("expert_model_parallel_size", problem, f"num_experts = {ep}")
    elif experts and experts % ep:
        problem = f"{experts} experts cannot be shared out evenly over {ep} expert parallel ranks"
        yield _fault("num_experts", problem, f"num_experts = {multiple(experts, ep)}")
    # megatron.core's MoELayer raises this error only in the first forward pass.
    if experts and tp > 1 and not options["sequence_parallel"]:
        problem = "experts with tensor parallelism need sequence parallelism"
        yield _fault("sequence_parallel", problem, "sequence_parallel = true")


def _training(options: Mapping[str, Any]) -> Iterator[Fault]:
    """Options that need or exclude one another."""
    if options.get("fp16") and options.get("bf16"):
        yield _fault("bf16", "bf16 and fp16 are both on, and Megatron-LM trains in one of them", "fp16 = false")
    if options.get("lr") is not None and options.get("min_lr", 0) > options["lr"]:
        problem = f"{options['min_lr']} is above lr, {options['lr']}"
        yield _fault("min_lr", problem, f"min_lr = {options['lr'] / 10:g}")
    lengths = [key for key in ("train_iters", "train_samples") if options.get(key)]
    if len(lengths) != 1 and not options.get("skip_train"):
        problem = "nothing says how long to train" if not lengths else "train_iters and train_samples are both given"
        yield _fault("train_iters", problem, "train_iters = 1000" if not lengths else "remove one of them")
    if options.get("lr_warmup_fraction") is not None:
        for key in ("lr_warmup_iters", "lr_warmup_samples"):
            if options.get(key):
                yield _fault(
                    key, "lr_warmup_fraction is given too, and Megatron-LM takes one of them", "remove one of them"
                )
    if "save" in options and not options.get("save_interval"):
        yield _fault("save", "Megatron-LM saves only with a save_interval", "save_interval = 1000")
    if options.get("overlap_param_gather"):
        if not (options.get("use_distributed_optimizer") or options.get("use_megatron_fsdp")):
            problem = "it needs the distributed optimizer"
            yield _fault("overlap_param_gather", problem, "use_distributed_optimizer = true")
        if not options.get("overlap_grad_reduce"):
            yield _fault("overlap_param_gather", "it needs overlap_grad_reduce", "overlap_grad_reduce = true")


def _data(options: Mapping[str, Any]) -> Iterator[Fault]:
    given = [key for key in ("mock_data", "data_path") if options.get(key)]
    given += [key for key in ("train_data_path", "valid_data_path", "test_data_path") if options.get(key)][:1]
    if len(given) > 1:
        yield _fault(
            given[1], f"{given[0]} is given too, and only one source of data can be used", "remove one of them"
        )
    tokenizer = options.get("tokenizer_type")
    for key in _TOKENIZERS.get(str(tokenizer), ()):
        if options.get(key) is None:
            example = "32000" if key == "vocab_size" else '"/data/tokenizer.model"'
            yield _fault(key, f"nothing sets this key, and {tokenizer} needs it", f"{key} = {example}")
