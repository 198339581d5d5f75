"""kit model: the arithmetic of a model's shape."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def model(
    *,
    layers: Annotated[int, typer.Option(min=1, help="Transformer layers.")],
    dim: Annotated[int, typer.Option(min=1, help="Width of the residual stream.")],
    heads: Annotated[int, typer.Option(min=1, help="Attention heads.")],
    vocab: Annotated[int, typer.Option(min=1, help="Entries of the vocabulary.")],
    context: Annotated[int, typer.Option(min=1, help="Tokens in a sequence.")] = 2048,
    ffn: Annotated[int | None, typer.Option(min=1, help="Width of the feed-forward block. [default: 4 x dim]")] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Key-value heads. [default: as many as heads]")] = None,
    gated: Annotated[bool, typer.Option("--gated", help="The feed-forward block has a third matrix (SwiGLU).")] = False,
    tied: Annotated[bool, typer.Option("--tied", help="Input and output embedding are one.")] = False,
    biases: Annotated[
        bool, typer.Option("--biases", help="Linear layers and norms have biases (GPT-2, GPT-NeoX).")
    ] = False,
    global_batch: Annotated[int, typer.Option(min=1, help="Sequences for each optimizer step, over all ranks.")] = 512,
    ratio: Annotated[float, typer.Option(min=0.01, help="Training tokens for each parameter.")] = 20.0,
    gpu_memory: Annotated[float, typer.Option(min=1, help="Memory of one GPU, in GB.")] = 80.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count a decoder-only model's parameters, its compute-optimal tokens and steps, and what fits on a GPU."""
    from kit import model_size
    from kit.errors import UsageError

    try:
        shape = model_size.Shape(
            layers=layers, dim=dim, heads=heads, vocab=vocab, context=context, ffn=ffn, kv_heads=kv_heads, gated=gated, tied=tied,
            biases=biases,
        )  # fmt: skip
    except ValueError as error:
        raise UsageError(str(error)) from None
    count = model_size.parameters(shape)
    tokens = model_size.optimal_tokens(count, tokens_per_parameter=ratio)
    facts = {
        "parameters": count,
        "non_embedding": model_size.non_embedding(shape),
        "tokens": tokens,
        "steps": model_size.steps(tokens, global_batch=global_batch, context=context),
        "operations": model_size.operations(count, tokens),
        "needs_sharding": model_size.needs_sharding(count, gpu_memory_gb=gpu_memory),
        "local_batch": model_size.local_batch(shape, gpu_memory_gb=gpu_memory),
    }
    if as_json:
        print(json.dumps(facts, indent=2))
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
