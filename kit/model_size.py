"""Sizes of a decoder-only transformer: parameters, compute-optimal tokens, memory and disk. Plain arithmetic.

Sources, by the names used below:
  Hoffmann 2022   Training Compute-Optimal Large Language Models, arXiv:2203.15556 ("Chinchilla"): about 20 tokens a parameter
  Kaplan 2020     Scaling Laws for Neural Language Models, arXiv:2001.08361: 6 operations for each parameter and token
  Rajbhandari 2019   ZeRO, arXiv:1910.02054, section 3.1: 16 bytes a parameter for mixed precision with Adam
  Korthikanti 2022   Reducing Activation Recomputation in Large Transformer Models, arXiv:2205.05198, section 4.1
  Touvron 2023    LLaMA, arXiv:2302.13971: RMSNorm, a gated feed-forward block, no biases
  Ainslie 2023    GQA, arXiv:2305.13245: fewer heads for keys and values than for queries
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kit.errors import RunError, UsageError
from kit.files import untrusted_files

Precision = Literal["fp32", "bf16"]
Optimizer = Literal["adam", "sgd", "none"]

# Hoffmann 2022, table 3: 20.2 billion tokens for 1 billion parameters, 1.5 trillion for 67 billion.
TOKENS_PER_PARAMETER = 20.0
# Rajbhandari 2019: 2 (half-precision weight) + 2 (gradient) + 12 (fp32 weight and Adam's two moments).
BYTES_PER_PARAMETER = 16
# Korthikanti 2022, equation 2: bytes of activations for each layer, token and channel. It lacks the term that grows with the square
# of the sequence length, because fused attention does not store it.
_ACTIVATION_BYTES = 34
# Logits and their gradient, both in fp32.
_LOGIT_BYTES = 8
# The share of a GPU's memory that remains after the framework, its buffers and fragmentation.
_USABLE = 0.9
# Bytes of a stored number.
_WEIGHT = {"fp32": 4, "bf16": 2}
_FP32 = 4
# ModelShape's fields -> keys of a Hugging Face config.json.
_KEYS = {
    "layers": "num_hidden_layers",
    "dim": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "tied": "tie_word_embeddings",
}


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer. The defaults describe the Llama family (Touvron 2023), like the kit's own GPT.

    ffn: width of the feed-forward block, default 4 x dim. kv_heads: key-value heads, default as many as heads. head_dim: default
    dim / heads. gated: the block has a third matrix (SwiGLU). tied: input and output share one embedding. biases: linear layers and
    norms have biases (GPT-2, GPT-NeoX). positions: learned position embeddings, 0 for rotary ones.

    UsageError for numbers that do not divide evenly; it names the options of `kit model`.
    """

    layers: int
    dim: int
    heads: int
    vocab: int
    context: int = 2048
    ffn: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    gated: bool = True
    tied: bool = False
    biases: bool = False
    positions: int = 0

    def __post_init__(self) -> None:
        if self.head_dim is None and self.dim % self.heads:
            raise UsageError(f"--heads {self.heads} must divide --dim {self.dim}", hint="or give --head-dim")
        if self.heads % (self.kv_heads or self.heads):
            raise UsageError(f"--kv-heads {self.kv_heads} must divide --heads {self.heads}")

    @property
    def feed_forward(self) -> int:
        """Width of the feed-forward block."""
        return self.ffn or 4 * self.dim

    @property
    def norm(self) -> int:
        """Parameters of a norm."""
        return 2 * self.dim if self.biases else self.dim

    @property
    def layer(self) -> int:
        """Parameters of a layer: queries, keys, values, output; the feed-forward block; two norms."""
        size = self.head_dim or self.dim // self.heads
        queries, keys = self.heads * size, (self.kv_heads or self.heads) * size
        inner = self.feed_forward
        attention = 2 * self.dim * queries + 2 * self.dim * keys
        block = (3 if self.gated else 2) * self.dim * inner
        biases = queries + 2 * keys + self.dim + (2 if self.gated else 1) * inner + self.dim if self.biases else 0
        return attention + block + biases + 2 * self.norm

    @property
    def embedding(self) -> int:
        """Parameters of the input embedding, and of the output embedding if it is not tied."""
        return self.vocab * self.dim

    @property
    def non_embedding(self) -> int:
        """Parameters of the layers and the last norm, as Kaplan 2020 counts them."""
        return self.layers * self.layer + self.norm

    @property
    def parameters(self) -> int:
        """All parameters, embeddings included, as Hoffmann 2022 counts them."""
        return self.non_embedding + (1 if self.tied else 2) * self.embedding + self.positions * self.dim


def shape_of(options: Mapping[str, int | bool | None], config: Path | None = None) -> ModelShape:
    """A shape from fields of ModelShape, which override those of `config`, a config.json of Hugging Face or its folder.

    UsageError that names missing fields; RunError for a file that is not a config.json.
    """
    known: dict[str, Any] = {} if config is None else _read(config)
    known |= {name: value for name, value in options.items() if value is not None}
    missing = [f"--{name}" for name in ("layers", "dim", "heads", "vocab") if known.get(name) is None]
    if missing:
        raise UsageError(
            f"the shape is not complete: {', '.join(missing)}", hint="give them, or --config with a config.json"
        )
    return ModelShape(**known)


def _read(config: Path) -> dict[str, Any]:
    path = config / "config.json" if config.is_dir() else config
    try:
        content = json.loads(untrusted_files.read_text(path))
        return {name: content[key] for name, key in _KEYS.items() if content.get(key) is not None}
    except (OSError, ValueError, AttributeError) as error:
        raise RunError(f"{path}: cannot be read as a config.json: {error}") from None


def optimal_tokens(count: int, *, tokens_per_parameter: float = TOKENS_PER_PARAMETER) -> int:
    """Training tokens for a model of `count` parameters (Hoffmann 2022)."""
    return math.ceil(count * tokens_per_parameter)


def steps(tokens: int, *, global_batch: int, context: int) -> int:
    """Optimizer steps for at least `tokens` tokens.

    global_batch: sequences per step, over all ranks. context: tokens per sequence.
    """
    return math.ceil(tokens / (global_batch * context))


def operations(count: int, tokens: int) -> float:
    """Floating-point operations of a training (Kaplan 2020)."""
    return 6.0 * count * tokens


def needs_sharding(count: int, *, gpu_memory_gb: float) -> bool:
    """Whether weights, gradients and optimizer state leave less than a fifth of a GPU's memory free (1 GB = 10^9 bytes)."""
    return BYTES_PER_PARAMETER * count > 0.8e9 * gpu_memory_gb


def local_batch(shape: ModelShape, *, gpu_memory_gb: float) -> int:
    """The largest power of two of sequences that fit on one GPU together with the unsharded model; 0 if none does. An estimate."""
    free = _USABLE * gpu_memory_gb * 1e9 - BYTES_PER_PARAMETER * shape.parameters
    each = shape.context * (shape.layers * shape.dim * _ACTIVATION_BYTES + shape.vocab * _LOGIT_BYTES)
    fitting = int(free // each)
    return 1 << (fitting.bit_length() - 1) if fitting >= 1 else 0


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """Ranks of each kind. distributed_optimizer: Megatron's, which shards its state over the data parallel ranks."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    distributed_optimizer: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckpointBytes:
    """Bytes of one checkpoint. master: the float32 copy of the weights that the optimizer updates."""

    weights: int
    master: int
    moments: int

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.weights + self.master + self.moments


def checkpoint_bytes(
    parameters: int, precision: Precision, optimizer: Optimizer, *, distributed_optimizer: bool = False
) -> CheckpointBytes:
    """Bytes of the numbers in a checkpoint with `parameters` in `precision`.

    Each stored piece of a tensor needs about 1.5 kB more (torch writes it as a separate file inside the shard). This is under 1 %
    from a width of about 512 on.

    Adam keeps two float32 moments for each parameter (Kingma and Ba 2015, arXiv 1412.6980), SGD one momentum. With bf16 weights the
    optimizer also keeps the weights in float32; with the moments this is K = 12 of the ZeRO paper (Rajbhandari et al. 2020, arXiv
    1910.02054, section 3.1). Megatron's distributed optimizer stores that copy for float32 weights too (megatron-core 0.16, seen in
    its checkpoints: `param` next to exp_avg and exp_avg_sq).
    """
    has_master = optimizer != "none" and (precision == "bf16" or distributed_optimizer)
    moments = {"adam": 2, "sgd": 1, "none": 0}[optimizer]
    return CheckpointBytes(
        weights=parameters * _WEIGHT[precision],
        master=parameters * _FP32 if has_master else 0,
        moments=parameters * _FP32 * moments,
    )


def largest_share(shape: ModelShape, precision: Precision, optimizer: Optimizer, parallel: Parallelism) -> int:
    """Bytes of the rank that writes most, if tensor and pipeline parallel ranks write their own parts.

    The first pipeline stage has the embedding, the last the output and the last norm. All tensor parallel ranks have the norms, and
    one of them writes them (Megatron-LM: Narayanan et al. 2021, arXiv 2104.04473). UsageError for an impossible layout.
    """
    for name, value, ranks in (
        ("--layers", shape.layers, parallel.pp),
        ("--heads", shape.heads, parallel.tp),
        ("--kv-heads", shape.kv_heads or shape.heads, parallel.tp),
        ("--vocab", shape.vocab, parallel.tp),
        ("--ffn", shape.feed_forward, parallel.tp),
    ):
        if value % ranks:
            raise UsageError(f"{name} {value} cannot be divided by {ranks} ranks")
    norms = 2 * shape.norm
    stage = shape.layers // parallel.pp * ((shape.layer - norms) // parallel.tp + norms)
    first = stage + shape.embedding // parallel.tp
    last = stage + (0 if shape.tied else shape.embedding // parallel.tp) + shape.norm
    if parallel.pp == 1:
        last += shape.embedding // parallel.tp
    held = checkpoint_bytes(
        max(first, last), precision, optimizer, distributed_optimizer=parallel.distributed_optimizer
    )
    dealt = parallel.dp if parallel.distributed_optimizer else 1
    return held.weights + -(-(held.master + held.moments) // dealt)
