"""Models, small and plain."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as again

ROPE_BASE = 10000.0


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
        return self.head(self.features(images))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of a GPT. `context` is the longest sequence, in tokens; the feed-forward part is 4 x dim wide."""

    layers: int
    heads: int
    dim: int
    context: int
    vocabulary: int = 256

    def __post_init__(self) -> None:
        if self.dim % (2 * self.heads):  # rotary positions turn the channels of a head in pairs
            raise SystemExit(f"--dim {self.dim} with --heads {self.heads}: it must be a multiple of {2 * self.heads}.")


class Block(nn.Module):
    """Causal self-attention, then a gated feed-forward part, each added to what came in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.RMSNorm(shape.dim)
        self.qkv = nn.Linear(shape.dim, 3 * shape.dim, bias=False)
        self.attention_out = nn.Linear(shape.dim, shape.dim, bias=False)
        self.feed_norm = nn.RMSNorm(shape.dim)
        self.gate_up = nn.Linear(shape.dim, 8 * shape.dim, bias=False)
        self.down = nn.Linear(4 * shape.dim, shape.dim, bias=False)

    def forward(self, x: torch.Tensor, angles: "Angles") -> torch.Tensor:
        batch, length, dim = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [batch, heads, length, dim of a head]
        q, k = rotate(q, angles), rotate(k, angles)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, dim))
        gate, up = self.gate_up(self.feed_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


@dataclass(frozen=True)
class Angles:
    """Cosine and sine of the rotary positions, [length, half a head], float32.

    No tensor argument and no buffer: FSDP and DeepSpeed would round those to bfloat16, and positions with them.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def of(cls, length: int, half: int, device: torch.device) -> "Angles":
        """For the positions from 0 on. Computed on the CPU, so that every device has the same."""
        turns = torch.arange(length)[:, None] * ROPE_BASE ** (-torch.arange(half) / half)
        return cls(turns.cos().to(device), turns.sin().to(device))

    def first(self, length: int) -> "Angles":
        """Of the first positions."""
        return Angles(self.cos[:length], self.sin[:length])


def rotate(x: torch.Tensor, angles: Angles) -> torch.Tensor:
    """Rotary position embedding (Su et al. 2021), by halves: channel i turns together with channel i + half. In float32."""
    first, second = x.float().chunk(2, dim=-1)
    turned = (first * angles.cos - second * angles.sin, second * angles.cos + first * angles.sin)
    return torch.cat(turned, dim=-1).type_as(x)


class GPT(nn.Module):
    """[batch, length] tokens -> [batch, length, vocabulary] logits; with targets, the mean cross-entropy instead."""

    def __init__(self, shape: Shape, *, recompute: bool = False) -> None:
        super().__init__()
        self.shape, self.recompute = shape, recompute
        self.embedding = nn.Embedding(shape.vocabulary, shape.dim)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.dim)
        self.head = nn.Linear(shape.dim, shape.vocabulary, bias=False)
        self._angles: dict[torch.device, Angles] = {}
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:  # what adds to the residual stream starts smaller (GPT-2 paper, section 2.3)
                deep = name.endswith(("attention_out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * shape.layers) ** 0.5 if deep else 0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embedding(tokens)
        angles = self.angles(tokens.device).first(tokens.shape[1])
        recompute = self.recompute and self.training  # keep only each block's input, compute the rest again in backward
        for block in self.blocks:
            x = again(block, x, angles, use_reentrant=False) if recompute else block(x, angles)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def angles(self, device: torch.device) -> Angles:
        """Of the rotary positions, on a device; made once for each."""
        if device not in self._angles:
            half = self.shape.dim // self.shape.heads // 2
            with torch.inference_mode(False):  # a model that has sampled first can be trained afterwards
                self._angles[device] = Angles.of(self.shape.context, half, device)
        return self._angles[device]

    def compile_blocks(self) -> None:
        """torch.compile each block in place: what is around them (DDP, FSDP) still sends while others are computed."""
        for block in self.blocks:
            block.compile()

    def described(self) -> dict[str, Any]:
        """What model.json says of it."""
        shape = self.shape
        return {
            "architecture": "kit-gpt",
            "layers": shape.layers,
            "dim": shape.dim,
            "feed_forward": 4 * shape.dim,
            "vocabulary": shape.vocabulary,
            "heads": shape.heads,
            "kv_heads": shape.heads,
            "head_dim": shape.dim // shape.heads,
            "context": shape.context,
            "norm_eps": torch.finfo(torch.float32).eps,  # what nn.RMSNorm takes without an eps
            "rope_base": ROPE_BASE,
            "tied_embeddings": False,
        }

    def flops_per_token(self) -> float:
        """Forward and backward, by 6 N + 12 L H Q T of PaLM's appendix B (arXiv 2204.02311); the embedding not counted."""
        weights = sum(p.numel() for p in self.parameters()) - self.embedding.weight.numel()
        return 6 * weights + 12 * self.shape.layers * self.shape.dim * self.shape.context
