"""What a checkpoint weighs, from a model's shape and optimizer: arithmetic only.

Counted are the numbers that are stored. Each stored piece of a tensor has about 1.5 kB around it (torch writes it as a file of its
own inside the shard), which is under 1 % from a width of about 512 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kit.errors import UsageError

Precision = Literal["fp32", "bf16"]
Optimizer = Literal["adam", "sgd", "none"]

_WEIGHT = {"fp32": 4, "bf16": 2}  # bytes
_FP32 = 4


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder of the Llama family (Touvron et al. 2023, arXiv 2302.13971): RMSNorm, gated feed-forward part, no biases.

    heads, kv_heads: attention heads, and those of keys and values (Ainslie et al. 2023, arXiv 2305.13245). head_dim: size
    of a head. tied: the output shares the embedding's weights. UsageError for numbers that do not fit one another.
    """

    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    tied: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise UsageError(f"--kv-heads {self.kv_heads} must divide --heads {self.heads}")

    @property
    def layer(self) -> int:
        """Parameters of a layer: queries, keys, values, output; gate, up, down; two norms."""
        attention = self.dim * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.dim * self.feed_forward + 2 * self.dim

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, and as many of the output where they are not tied."""
        return self.vocabulary * self.dim

    @property
    def parameters(self) -> int:
        """Of the whole model, with the last norm."""
        return self.layers * self.layer + self.embedding * (1 if self.tied else 2) + self.dim


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Ranks of each kind. distributed_optimizer: megatron's, whose state is dealt out over the data parallel ranks."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    distributed_optimizer: bool = False


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """Bytes of one checkpoint. master: the float32 copy of the weights that the optimizer updates."""

    weights: int
    master: int
    moments: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.master + self.moments


def of(parameters: int, precision: Precision, optimizer: Optimizer, *, distributed_optimizer: bool = False) -> Bytes:
    """Bytes of a checkpoint with `parameters` in `precision`.

    Adam keeps two float32 moments for each parameter (Kingma and Ba 2015, arXiv 1412.6980), SGD one momentum. With bf16 weights
    the optimizer keeps them in float32 too, the K = 12 of the ZeRO paper (Rajbhandari et al. 2020, arXiv 1910.02054, section
    3.1) with the moments. Megatron's distributed optimizer stores that copy for float32 weights as well (megatron-core 0.16,
    seen in its checkpoints: `param` beside exp_avg and exp_avg_sq).
    """
    has_master = optimizer != "none" and (precision == "bf16" or distributed_optimizer)
    moments = {"adam": 2, "sgd": 1, "none": 0}[optimizer]
    return Bytes(
        weights=parameters * _WEIGHT[precision],
        master=parameters * _FP32 if has_master else 0,
        moments=parameters * _FP32 * moments,
    )


def largest_share(shape: Shape, precision: Precision, optimizer: Optimizer, layout: Layout) -> int:
    """Bytes that the rank with the most writes, where tensor and pipeline parallel ranks write what they hold.

    The first pipeline stage has the embedding, the last the output and the last norm; norms are on all tensor parallel ranks,
    and one of them writes them (Megatron-LM: Narayanan et al. 2021, arXiv 2104.04473). UsageError for a layout that cannot be.
    """
    for name, value, ranks in (
        ("--layers", shape.layers, layout.pp),
        ("--heads", shape.heads, layout.tp),
        ("--kv-heads", shape.kv_heads, layout.tp),
        ("--vocabulary", shape.vocabulary, layout.tp),
        ("--ffn", shape.feed_forward, layout.tp),
    ):
        if value % ranks:
            raise UsageError(f"{name} {value} cannot be divided by {ranks} ranks")
    norms = 2 * shape.dim
    stage = shape.layers // layout.pp * ((shape.layer - norms) // layout.tp + norms)
    first = stage + shape.embedding // layout.tp
    last = stage + (0 if shape.tied else shape.embedding // layout.tp) + shape.dim
    if layout.pp == 1:
        last += shape.embedding // layout.tp
    held = of(max(first, last), precision, optimizer, distributed_optimizer=layout.distributed_optimizer)
    dealt = layout.dp if layout.distributed_optimizer else 1
    return held.weights + -(-(held.master + held.moments) // dealt)
