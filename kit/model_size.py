"""How large a decoder-only transformer is, how many tokens it wants, and what it takes in memory. Plain arithmetic, no framework.

Sources, by the names used below:
  Hoffmann 2022   Training Compute-Optimal Large Language Models, arXiv:2203.15556 ("Chinchilla"): about 20 tokens a parameter
  Kaplan 2020     Scaling Laws for Neural Language Models, arXiv:2001.08361: 6 operations for each parameter and token
  Rajbhandari 2019   ZeRO, arXiv:1910.02054, section 3.1: 16 bytes a parameter for mixed precision with Adam
  Korthikanti 2022   Reducing Activation Recomputation in Large Transformer Models, arXiv:2205.05198, section 4.1
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Hoffmann 2022, table 3: 1 billion parameters want 20.2 billion tokens, 67 billion want 1.5 trillion.
TOKENS_PER_PARAMETER = 20.0
# Rajbhandari 2019: 2 (half-precision weight) + 2 (gradient) + 12 (fp32 weight and Adam's two moments).
BYTES_PER_PARAMETER = 16
# Korthikanti 2022, equation 2: bytes of activations for each layer, token and channel. The term that grows with the square of the
# sequence is left out: fused attention does not store it.
_ACTIVATION_BYTES = 34
# Logits and their gradient, both in fp32.
_LOGIT_BYTES = 8
# What the framework, its buffers and fragmentation leave of a GPU's memory.
_USABLE = 0.9


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder-only transformer.

    ffn: width of the feed-forward block, default 4 x dim. kv_heads: key-value heads, default as many as heads. gated: the block has
    a third matrix (SwiGLU). tied: input and output embedding are one. biases: linear layers and norms have them (GPT-2, GPT-NeoX).
    positions: learned position embeddings, 0 for rotary ones.
    """

    layers: int
    dim: int
    heads: int
    vocab: int
    context: int = 2048
    ffn: int | None = None
    kv_heads: int | None = None
    gated: bool = False
    tied: bool = False
    biases: bool = False
    positions: int = 0

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ValueError(f"dim {self.dim} cannot be divided over {self.heads} heads")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"{self.heads} heads cannot be divided over {self.kv_heads} key-value heads")


def parameters(shape: Shape) -> int:
    """All parameters, embeddings included, as Hoffmann 2022 counts them."""
    tables = 1 if shape.tied else 2
    return non_embedding(shape) + tables * shape.vocab * shape.dim + shape.positions * shape.dim


def non_embedding(shape: Shape) -> int:
    """Parameters of the layers and the last norm, as Kaplan 2020 counts them."""
    dim, ffn = shape.dim, shape.ffn or 4 * shape.dim
    kv = dim * (shape.kv_heads or shape.heads) // shape.heads
    attention = 2 * dim * dim + 2 * dim * kv
    feed_forward = (3 if shape.gated else 2) * dim * ffn
    norm = 2 * dim if shape.biases else dim
    biases = 2 * dim + 2 * kv + (2 if shape.gated else 1) * ffn + dim if shape.biases else 0
    return shape.layers * (attention + feed_forward + 2 * norm + biases) + norm


def optimal_tokens(count: int, *, tokens_per_parameter: float = TOKENS_PER_PARAMETER) -> int:
    """Training tokens for a model of `count` parameters (Hoffmann 2022)."""
    return math.ceil(count * tokens_per_parameter)


def steps(tokens: int, *, global_batch: int, context: int) -> int:
    """Optimizer steps that see `tokens` at least. global_batch: sequences a step, over all ranks; context: tokens a sequence."""
    return math.ceil(tokens / (global_batch * context))


def operations(count: int, tokens: int) -> float:
    """Floating-point operations of a training (Kaplan 2020)."""
    return 6.0 * count * tokens


def needs_sharding(count: int, *, gpu_memory_gb: float) -> bool:
    """Whether weights, gradients and optimizer state leave less than a fifth of a GPU (10^9 bytes a GB) for everything else."""
    return BYTES_PER_PARAMETER * count > 0.8e9 * gpu_memory_gb


def local_batch(shape: Shape, *, gpu_memory_gb: float) -> int:
    """Largest power of two of sequences that fit beside the unsharded model on one GPU; 0 when none does. An estimate."""
    free = _USABLE * gpu_memory_gb * 1e9 - BYTES_PER_PARAMETER * parameters(shape)
    each = shape.context * (shape.layers * shape.dim * _ACTIVATION_BYTES + shape.vocab * _LOGIT_BYTES)
    fitting = int(free // each)
    return 1 << (fitting.bit_length() - 1) if fitting >= 1 else 0
