"""kit model: the arithmetic of a model's shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli.json_options import Json
from kit.cli.model_options import with_shape
from kit.cli.print_json import print_json

if TYPE_CHECKING:
    from kit.model_size import ModelShape


@with_shape
def model(
    *,
    shape: ModelShape,
    global_batch: Annotated[
        int, typer.Option(min=1, help="Number of sequences for each optimizer step, over all ranks together.")
    ] = 512,
    ratio: Annotated[float, typer.Option(min=0.01, help="Number of training tokens for each parameter.")] = 20.0,
    gpu_memory: Annotated[float, typer.Option(min=1, help="Memory of one GPU, in GB.")] = 80.0,
    as_json: Json = False,
) -> None:
    """Compute a decoder-only model's parameters, compute-optimal tokens and steps, need for sharding, and local batch."""
    from kit import model_size

    count = shape.parameters
    tokens = model_size.optimal_tokens(count, tokens_per_parameter=ratio)
    facts = {
        "parameters": count,
        "non_embedding": shape.non_embedding,
        "tokens": tokens,
        "steps": model_size.steps(tokens, global_batch=global_batch, context=shape.context),
        "operations": model_size.operations(count, tokens),
        "needs_sharding": model_size.needs_sharding(count, gpu_memory_gb=gpu_memory),
        "local_batch": model_size.local_batch(shape, gpu_memory_gb=gpu_memory),
    }
    if as_json:
        print_json("model", facts)
        return
    for name, value in facts.items():
        text = (
            f"{value:.3g}"
            if isinstance(value, float)
            else f"{value:,}"
            if not isinstance(value, bool)
            else str(value).lower()
        )
        print(f"{name:<15} {text}  # {_SOURCES[name]}")


_SOURCES = {
    "parameters": "embeddings included",
    "non_embedding": "layers and last norm",
    "tokens": "Hoffmann et al. 2022, arXiv:2203.15556: 20 a parameter",
    "steps": "tokens / (global batch x context)",
    "operations": "6 a parameter and token: Kaplan et al. 2020, arXiv:2001.08361",
    "needs_sharding": "16 bytes a parameter: Rajbhandari et al. 2019, arXiv:1910.02054",
    "local_batch": "an estimate: Korthikanti et al. 2022, arXiv:2205.05198",
}
