"""Megatron: the `[megatron]` table as options, after its parallel layout was checked against the world size.

The rules are those of megatron.core.parallel_state and Megatron-LM's validate_args: each would stop the job after it had its nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

from kit.errors import ConfigError, Fault
from kit.frameworks import Extra
from kit.layout import Layout
from kit.spec.job import Job
from kit.spec.training import Megatron

# Key, what it is, what is allowed.
Broken = tuple[str, object, str]


def prepare(job: Job, layout: Layout, *, file: str) -> Extra:
    """The options; nothing when the job has no [megatron]."""
    if job.megatron is None:
        return Extra()
    check(job.megatron, layout.world_size, file=file)
    return Extra(args=tuple(words(job.megatron)))


def words(table: Megatron) -> list[str]:
    """`--num-layers 24 --sequence-parallel …`: true is the bare option, false none."""
    made: list[str] = []
    options = table.options()
    options.setdefault("max_position_embeddings", table.seq_length)
    for key, value in options.items():
        if value is False:
            continue
        made.append(f"--{key.replace('_', '-')}")
        if value is not True:
            made += [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]
    return made


def check(table: Megatron, world_size: int, *, file: str) -> None:
    """ConfigError with every rule that the layout breaks, each with its numbers."""
    broken = [*_ranks(table, world_size), *_model(table), *_options(table)]
    if broken:
        raise ConfigError.of(
            *(Fault(file=file, key=f"megatron.{key}", got=str(got), allowed=allowed) for key, got, allowed in broken)
        )


def _ranks(table: Megatron, world_size: int) -> Iterator[Broken]:
    """TP x PP x CP x DP is the world; experts share the data x context parallel ranks; a batch is dealt out evenly."""
    tp, pp, cp = table.tensor_model_parallel_size, table.pipeline_model_parallel_size, table.context_parallel_size
    model = tp * pp * cp
    if world_size % model:
        got = f"{tp} x PP {pp} x CP {cp} = {model}"
        yield "tensor_model_parallel_size", got, f"a divisor of the world size, {world_size}"
        return
    data = world_size // model
    if (data * cp) % table.expert_model_parallel_size:
        allowed = f"a divisor of data x context parallel ranks, {data * cp}"
        yield "expert_model_parallel_size", table.expert_model_parallel_size, allowed
    if table.global_batch_size % (table.micro_batch_size * data):
        got = f"{table.global_batch_size} with micro batch {table.micro_batch_size} on {data} data parallel ranks"
        yield "global_batch_size", got, f"a multiple of {table.micro_batch_size * data}"


def _model(table: Megatron) -> Iterator[Broken]:
    """What the ranks of a layout share must come apart evenly."""
    tp, pp, cp = table.tensor_model_parallel_size, table.pipeline_model_parallel_size, table.context_parallel_size
    for key, value in (
        ("num_attention_heads", table.num_attention_heads),
        ("num_query_groups", table.num_query_groups),
    ):
        if value is not None and value % tp:
            yield key, value, f"a multiple of the tensor parallel size, {tp}"
    if table.hidden_size % table.num_attention_heads and "kv_channels" not in table.options():
        yield "hidden_size", table.hidden_size, f"a multiple of num_attention_heads, {table.num_attention_heads}"
    if table.num_layers % pp:
        yield "num_layers", table.num_layers, f"a multiple of the pipeline parallel size, {pp}"
    if cp > 1 and table.seq_length % (2 * cp):
        yield "seq_length", table.seq_length, f"a multiple of 2 x context parallel size, {2 * cp}"


def _options(table: Megatron) -> Iterator[Broken]:
    """Options that need, or exclude, one another."""
    ep, options = table.expert_model_parallel_size, table.options()
    if table.sequence_parallel and table.tensor_model_parallel_size == 1:
        yield "sequence_parallel", "true", "with a tensor parallel size above 1"
    if ep > 1 and not table.num_experts:
        yield "expert_model_parallel_size", ep, "1, unless num_experts is set"
    elif table.num_experts and table.num_experts % ep:
        yield "num_experts", table.num_experts, f"a multiple of the expert parallel size, {ep}"
    # pretrain_gpt.py asserts this after every rank has loaded.
    if "save" in options and "save_interval" not in options:
        yield "save", options["save"], "with save_interval: Megatron-LM refuses one without the other"
