"""DeepSpeed's three batch sizes: batch = size per GPU x accumulation steps x data parallel ranks.

Names and arithmetic follow DeepSpeed's documentation ("DeepSpeed Configuration JSON", batch size parameters). All ranks are data
parallel ranks, unless the program splits its model over several ranks (tensor, pipeline or sequence parallelism).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from math import prod
from typing import Any

from kit.errors import Fault
from kit.frameworks.nearest_multiple_or_divisor import multiple
from kit.schema.wrong_value_messages import shown

TOTAL, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
# Options that split a model, in the programs of Megatron-DeepSpeed and in programs derived from them.
_SPLITTING = (
    ("--tensor-model-parallel-size", "--tp"),
    ("--pipeline-model-parallel-size", "--pp"),
    ("--context-parallel-size", "--cp"),
    ("--ds-sequence-parallel-size",),
)


def given(table: Mapping[str, Any]) -> dict[str, Any]:
    """The batch sizes that the table sets. A list for the autotuner sets none."""
    found = {name: table[name] for name in (TOTAL, MICRO, STEPS) if table.get(name, "auto") != "auto"}
    return {name: value for name, value in found.items() if not (isinstance(value, list) and tunes(table))}


def tunes(table: Mapping[str, Any]) -> bool:
    """Whether DeepSpeed's autotuner is on: then a list is a choice of values."""
    tuning = table.get("autotuning")
    return isinstance(tuning, Mapping) and tuning.get("enabled") is True


def not_numbers(table: Mapping[str, Any], copies: int = 1) -> Iterator[Fault]:
    """Batch sizes that are not whole numbers of 1 or more. copies: data parallel ranks, of which a total is a multiple."""
    for name, value in given(table).items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            problem = f"{shown(value)} is not a whole number of 1 or more"
            yield Fault(key=f"deepspeed.{name}", problem=problem, hint=f"{name} = {copies if name == TOTAL else 1}")


def completed(known: Mapping[str, int], copies: int) -> dict[str, int]:
    """The three sizes. Missing ones are derived from the others as DeepSpeed derives them. copies: data parallel ranks."""
    total, micro, steps = known.get(TOTAL), known.get(MICRO), known.get(STEPS)
    if micro is None and total is not None:
        micro = total // ((steps or 1) * copies)
    micro = micro or 1
    if steps is None:
        steps = total // (micro * copies) if total is not None else 1
    return {TOTAL: total if total is not None else micro * steps * copies, MICRO: micro, STEPS: steps}


def uneven(table: Mapping[str, Any], copies: int, ranks: str = "ranks") -> Iterator[Fault]:
    """A total batch size that is not the product of the other sizes, or not a multiple of those given.

    ranks: the word for the copies.
    """
    known = given(table)
    if any(not_numbers(table)):
        return
    made = completed(known, copies)
    if made[MICRO] * made[STEPS] * copies == made[TOTAL]:
        return
    micro, steps = known.get(MICRO), known.get(STEPS)
    parts = [f"{micro} per GPU"] if micro else []
    parts += [f"{steps} accumulation steps"] if steps else []
    product, factors = (micro or 1) * (steps or 1) * copies, [*parts, f"{copies} {ranks}"]
    text = " x ".join(factors) + (f" = {product}" if len(factors) > 1 else "")
    if micro and steps:
        problem = f"{known[TOTAL]} is not {text}"
        hint = f"{TOTAL} = {product}, or remove one of the three"
    else:
        problem = f"{known[TOTAL]} is not a multiple of {text}"
        hint = f"{TOTAL} = {multiple(known[TOTAL], product)}"
    yield Fault(key=f"deepspeed.{TOTAL}", problem=problem, hint=hint)


def split(args: Iterable[str], table: Mapping[str, Any]) -> int:
    """The number of ranks over which the user's own program splits its model: from its options, or from the
    table's AutoTP; else 1.
    """
    words = [*args]
    pairs = dict(pairwise(words)) | dict(word.split("=", 1) for word in words if "=" in word)
    sizes = [next((int(pairs[n]) for n in names if pairs.get(n, "").isdecimal()), 1) for names in _SPLITTING]
    tensor = table.get("tensor_parallel")
    auto = tensor.get("autotp_size") if isinstance(tensor, Mapping) else None
    if sizes[0] == 1 and isinstance(auto, int):
        sizes[0] = auto
    return prod(max(size, 1) for size in sizes)


def doubtful(table: Mapping[str, Any], world_size: int, parts: int) -> Iterator[Fault]:
    """Warnings for the user's own program. parts: the number of ranks that share one model, as far as its options show it."""
    if world_size % parts:
        problem = f"{world_size} ranks cannot be divided into models of {parts} ranks each"
        yield Fault(key="resources.nodes", problem=problem, hint=f"nodes = {parts}")
        return
    ranks = "ranks" if parts == 1 else f"data parallel ranks ({world_size} ranks, {parts} for each model)"
    for fault in uneven(table, world_size // parts, ranks):
        problem = f"{fault.problem}; correct only if the program splits its model over more ranks than its options show"
        yield Fault(key=fault.key, problem=problem, hint=fault.hint)
