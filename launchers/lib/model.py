"""Models, small and plain: a ConvNet, and a GPT of the Llama family.

Shapes in comments: B sequences in a batch, T tokens in a sequence, C width of the model (dim), H query heads, K key-value heads, D
width of a head, F width of the feed-forward part, V size of the vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as again

from . import initial

if TYPE_CHECKING:
    from .cache import Cache

ROPE_BASE = 10000.0
# Keys and values of the newest tokens -> those of all tokens that these attend to, (B, K, places, D) each.
KeysAndValues: TypeAlias = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class ConvNet(nn.Module):
    """[batch, channels, height, width] of any size -> [batch, classes]: three convolutions, a linear classifier."""

    def __init__(self, channels: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * width, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.features(images)  # (batch, 2 * width, 2, 2): pooled, so that any image size fits
        return self.head(features)  # (batch, classes)


@dataclass(frozen=True, kw_only=True)
class GPTShape:
    """The size of a GPT, and its variant of Llama. `context`: the longest sequence, in tokens.

    kv_heads: None means as many as heads. head_dim: None means dim / heads. feed_forward: None means 4 x dim. norm_eps: None means
    float32's machine epsilon. rope_scaling: Llama 3's factor, low and high frequency factor, and original length. qkv_bias: biases
    of queries, keys and values, as in Qwen2. head_norms: norms of queries and keys in each head, as in Qwen3.
    """

    layers: int
    heads: int
    dim: int
    context: int
    vocabulary: int = 256
    kv_heads: int | None = None
    head_dim: int | None = None
    feed_forward: int | None = None
    norm_eps: float | None = None
    rope_base: float = ROPE_BASE
    rope_scaling: tuple[float, float, float, float] | None = None
    qkv_bias: bool = False
    head_norms: bool = False

    def __post_init__(self) -> None:
        if self.head_dim is None and self.dim % (2 * self.heads):  # rotary positions rotate a head's channels in pairs
            raise SystemExit(f"--dim {self.dim} with --heads {self.heads}: it must be a multiple of {2 * self.heads}.")

    @property
    def each(self) -> int:
        """The size of a head."""
        return self.head_dim or self.dim // self.heads

    @property
    def keys(self) -> int:
        """The number of key-value heads."""
        return self.kv_heads or self.heads

    @property
    def wide(self) -> int:
        """The width of the feed-forward part."""
        return self.feed_forward or 4 * self.dim

    def described(self, architecture: str) -> dict[str, Any]:
        """The content of model.json for a model of this shape."""
        return {
            "architecture": architecture,
            "layers": self.layers,
            "dim": self.dim,
            "feed_forward": self.wide,
            "vocabulary": self.vocabulary,
            "heads": self.heads,
            "kv_heads": self.keys,
            "head_dim": self.each,
            "context": self.context,
            "norm_eps": self.norm_eps or torch.finfo(torch.float32).eps,  # the default of nn.RMSNorm
            "rope_base": self.rope_base,
            "rope_scaling": self.rope_scaling,
            "qkv_bias": self.qkv_bias,
            "head_norms": self.head_norms,
            "tied_embeddings": False,
        }


class Block(nn.Module):
    """Causal self-attention, then a gated feed-forward part. Each is added to its input."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.heads, self.keys, self.each = shape.heads, shape.keys, shape.each
        self.attention_norm = nn.RMSNorm(shape.dim, shape.norm_eps)
        # One matrix for queries, keys and values: (C) -> ((H + 2K) * D).
        self.qkv = nn.Linear(shape.dim, (shape.heads + 2 * shape.keys) * shape.each, bias=shape.qkv_bias)
        if shape.head_norms:
            self.query_norm, self.key_norm = (
                nn.RMSNorm(shape.each, shape.norm_eps),
                nn.RMSNorm(shape.each, shape.norm_eps),
            )
        self.attention_out = nn.Linear(shape.heads * shape.each, shape.dim, bias=False)
        self.feed_norm = nn.RMSNorm(shape.dim, shape.norm_eps)
        # SwiGLU: gate and up in one matrix, (C) -> (2F), then down, (F) -> (C).
        self.gate_up = nn.Linear(shape.dim, 2 * shape.wide, bias=False)
        self.down = nn.Linear(shape.wide, shape.dim, bias=False)

    def forward(
        self, x: torch.Tensor, angles: "Angles", seen: torch.Tensor | None = None, kept: KeysAndValues | None = None
    ) -> torch.Tensor:
        """seen: mask of the positions that each position attends to, from `within`; None: itself and all before it.

        kept: in sampling, adds the tokens before these (lib/cache.py).
        """
        batch, length, _ = x.shape  # (B, T, C)
        # ---- attention ----
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, -1, self.each).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.keys, self.keys), 1)  # (B, H, T, D), and (B, K, T, D) twice
        if hasattr(self, "query_norm"):
            q, k = self.query_norm(q), self.key_norm(k)
        q, k = rotate(q, angles), rotate(k, angles)  # positions are encoded here, so there is no position embedding
        if kept is not None:
            k, v = kept(k, v)
        # Grouped queries: H / K query heads share a key-value head.
        fewer = {"enable_gqa": True} if self.keys < self.heads else {}
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None, **fewer)
        # mixed is (B, H, T, D): join the heads, (B, T, H * D), and project back to (B, T, C).
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, -1))
        # ---- feed-forward ----
        gate, up = self.gate_up(self.feed_norm(x)).chunk(2, dim=-1)  # (B, T, F) each
        return x + self.down(functional.silu(gate) * up)


@dataclass(frozen=True)
class Angles:
    """Cosine and sine of the rotary positions, [length, half a head], float32.

    Neither a tensor argument nor a buffer: FSDP and DeepSpeed would round those to bfloat16, and the positions with them.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def of(cls, shape: GPTShape, device: torch.device) -> "Angles":
        """The angles of all positions from 0. Computed on the CPU, so that every device has the same."""
        half = shape.each // 2
        rates = shape.rope_base ** (-torch.arange(half) / half)  # (D / 2,): radians per position, the fastest first
        if shape.rope_scaling is not None:
            rates = stretched(rates, *shape.rope_scaling)
        turns = torch.arange(shape.context)[:, None] * rates  # (T, D / 2)
        return cls(turns.cos().to(device), turns.sin().to(device))

    def first(self, length: int) -> "Angles":
        """The angles of the first `length` positions."""
        return Angles(self.cos[:length], self.sin[:length])

    def at(self, places: torch.Tensor) -> "Angles":
        """The angles of one position in each row, (B,), in the shape of keys and queries: (B, 1, 1, half a head)."""
        return Angles(self.cos[places][:, None, None], self.sin[places][:, None, None])


def stretched(rates: torch.Tensor, factor: float, low: float, high: float, length: float) -> torch.Tensor:
    """Llama 3's rates for longer sequences: slow ones get `factor` times slower, fast ones stay, those between are interpolated.

    A slow rate turns fewer than `low` times in the first `length` positions, a fast one more than `high` times
    ("The Llama 3 Herd of Models", arXiv 2407.21783, and its published code).
    """
    turned = length * rates / (2 * math.pi)
    share = ((turned - low) / (high - low)).clamp(0, 1)
    return rates * (share + (1 - share) / factor)


def rotate(x: torch.Tensor, angles: Angles) -> torch.Tensor:
    """Rotary position embedding (Su et al. 2021), in halves: channel i is rotated with channel i + half. In float32."""
    first, second = x.float().chunk(2, dim=-1)
    turned = (first * angles.cos - second * angles.sin, second * angles.cos + first * angles.sin)
    return torch.cat(turned, dim=-1).type_as(x)


def within(tokens: torch.Tensor, end: int) -> torch.Tensor:
    """[batch, 1, length, length]: True where a position attends to another, which is not after it and not before the last `end`.

    The end of a document belongs to the document after it. So a model can also learn what follows an end.
    """
    return together((tokens == end).cumsum(1))


def together(documents: torch.Tensor) -> torch.Tensor:
    """[batch, 1, length, length]: True where a position attends to another, which is of the same document and not after it.

    documents: (B, T), the number of the document that a token belongs to.
    """
    length = documents.shape[1]
    same = documents[:, None, :, None] == documents[:, None, None, :]
    return same & torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()


class GPT(nn.Module):
    """[batch, length] tokens -> [batch, length, vocabulary] logits; with targets, the mean cross-entropy instead."""

    def __init__(
        self, shape: GPTShape, *, recompute: bool = False, apart: int | None = None, drawn: bool = True
    ) -> None:
        """recompute: compute activations again in backward. apart: the token after which no token attends to an earlier document.

        drawn: draw the first weights from torch's seed, but not on the meta device. False where a framework has cut the parameters.
        """
        super().__init__()
        self.shape, self.recompute, self.apart = shape, recompute, apart
        self.embedding = nn.Embedding(shape.vocabulary, shape.dim)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.dim, shape.norm_eps)
        self.head = nn.Linear(shape.dim, shape.vocabulary, bias=False)
        self._angles: dict[torch.device, Angles] = {}
        if drawn and not self.embedding.weight.is_meta:
            initial.fill(self, self.std, seed=torch.initial_seed())

    def std(self, name: str) -> float:
        """The standard deviation for drawing a matrix, by its name."""
        # Matrices that add to the residual stream start smaller (GPT-2 paper, section 2.3).
        deep = name.endswith(("attention_out.weight", "down.weight"))
        return 0.02 / (2 * self.shape.layers) ** 0.5 if deep else 0.02

    def forward(
        self, tokens: torch.Tensor, targets: torch.Tensor | None = None, documents: torch.Tensor | None = None
    ) -> torch.Tensor:
        """documents: (B, T), numbers of documents of which none attends to another."""
        x = self.embedding(tokens)  # (B, T) -> (B, T, C)
        angles = self.angles(tokens.device).first(tokens.shape[1])
        seen = None if self.apart is None else within(tokens, self.apart)
        seen = seen if documents is None else together(documents)
        recompute = self.recompute and self.training  # keep only each block's input, compute the rest again in backward
        for block in self.blocks:
            x = again(block, x, angles, seen, use_reentrant=False) if recompute else block(x, angles, seen)
        logits = self.head(self.norm(x))  # (B, T, V)
        if targets is None:
            return logits
        # In float32, over B * T predictions at once: (B * T, V) against (B * T,).
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def continued(self, tokens: torch.Tensor, cache: "Cache") -> torch.Tensor:
        """The logits of each row's next token, (B, V): tokens (B, T) at first, then (B, 1), each time after all those before."""
        x = self.embedding(tokens)  # (B, T, C)
        angles, seen = cache.begin(tokens, self.angles(tokens.device))
        for number, block in enumerate(self.blocks):
            x = block(x, angles, seen, cache.of(number))
        return self.head(self.norm(cache.last(x)))

    def angles(self, device: torch.device) -> Angles:
        """The angles of the rotary positions on a device, made once for each device."""
        if device not in self._angles:
            with torch.inference_mode(False):  # so that a model that has sampled can be trained afterwards
                self._angles[device] = Angles.of(self.shape, device)
        return self._angles[device]

    def compile_blocks(self) -> None:
        """torch.compile each block in place, so that DDP or FSDP around the blocks can communicate while others compute."""
        for block in self.blocks:
            block.compile()

    def described(self) -> dict[str, Any]:
        """The content of model.json for this model."""
        return self.shape.described("kit-gpt")

    def flops_per_token(self) -> float:
        """Operations of forward and backward: 6 N + 12 L H Q T of PaLM's appendix B (arXiv 2204.02311), without the embedding."""
        weights = sum(p.numel() for p in self.parameters()) - self.embedding.weight.numel()
        return 6 * weights + 12 * self.shape.layers * self.shape.heads * self.shape.each * self.shape.context
