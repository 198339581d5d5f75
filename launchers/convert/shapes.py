"""The shape of a model: from its tensors, and from other sources what tensors do not show (heads, context, norm)."""

import argparse
import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import torch
from lib.faults import Refused
from source import CheckpointSource

# The default eps of torch's RMSNorm, which launchers/lib/model.py uses, is the machine epsilon of its input's type.
_GPT_NORM_EPS = torch.finfo(torch.float32).eps
# Defaults of megatron.core: TransformerConfig.layernorm_epsilon, and rotary_base of GPTModel.
_NORM_EPS, _ROPE_BASE = 1e-5, 10000.0


@dataclass(frozen=True, kw_only=True)
class Given:
    """Values that the user gives. They win over values that are found."""

    heads: int | None = None
    context: int | None = None
    norm_eps: float | None = None
    rope_base: float | None = None


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """A decoder of the Llama family. heads, kv_heads, head_dim: None where not known. context: the longest sequence."""

    layers: int
    dim: int
    feed_forward: int
    vocabulary: int
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    context: int | None
    norm_eps: float
    rope_base: float
    tied_embeddings: bool
    rope_scaling: tuple[float, ...] | None = None
    qkv_bias: bool = False
    head_norms: bool = False


def config(source: CheckpointSource, given: Given) -> dict[str, Any]:
    """model_config of a .pt file: all that is known of the model, as plain values."""
    shape = of(source, given)
    return {
        "architecture": {"megatron": "megatron-gpt", "gpt": "kit-gpt", "other": "unknown"}[source.kind],
        "step": source.step,
        **(dataclasses.asdict(shape) if shape else {}),
    }


def of(source: CheckpointSource, given: Given) -> DecoderShape | None:
    """The shape, or None for a model of neither family."""
    if source.kind == "other":
        return None
    size = {piece.name: piece.shape for piece in source.pieces}
    is_megatron = source.kind == "megatron"
    names = _MEGATRON if is_megatron else _GPT
    for name in names.values():
        if name not in size:
            raise Refused(f"{source.folder}: incomplete, or of another model: {name} is missing")
    vocabulary, dim = size[names["embedding"]]
    told = _described(source)
    heads = given.heads or told.get("heads")
    head_dim, kv_heads = _heads(heads, told.get("head_dim"), rows=size[names["qkv"]][0], wide=size[names["out"]][1])
    return DecoderShape(
        layers=1
        + max(
            int(name.split(".")[2 if is_megatron else 1]) for name in size if ".layers." in name or "blocks." in name
        ),
        dim=dim,
        feed_forward=size[names["down"]][1],
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context=given.context or told.get("context"),
        norm_eps=given.norm_eps or told.get("norm_eps") or (_NORM_EPS if is_megatron else _GPT_NORM_EPS),
        rope_base=given.rope_base or told.get("rope_base") or _ROPE_BASE,
        tied_embeddings=is_megatron and "output_layer.weight" not in size,
        rope_scaling=tuple(told["rope_scaling"]) if told.get("rope_scaling") else None,
        qkv_bias=names["qkv"].replace("weight", "bias") in size,
        head_norms=(
            "decoder.layers.0.self_attention.q_layernorm.weight" if is_megatron else "blocks.0.query_norm.weight"
        )
        in size,
    )


_MEGATRON = {
    "embedding": "embedding.word_embeddings.weight",
    "qkv": "decoder.layers.0.self_attention.linear_qkv.weight",
    "out": "decoder.layers.0.self_attention.linear_proj.weight",
    "down": "decoder.layers.0.mlp.linear_fc2.weight",
}
_GPT = {
    "embedding": "embedding.weight",
    "qkv": "blocks.0.qkv.weight",
    "out": "blocks.0.attention_out.weight",
    "down": "blocks.0.down.weight",
}


def _heads(heads: int | None, head_dim: int | None, *, rows: int, wide: int) -> tuple[int | None, int | None]:
    """Size of a head, and number of key-value heads. rows: of all query, key and value weights. wide: heads x size of a head."""
    if heads is None:
        return None, None
    head_dim = head_dim or wide // heads
    kv_heads = (rows // head_dim - heads) // 2
    if heads * head_dim != wide or (heads + 2 * kv_heads) * head_dim != rows or kv_heads < 1 or heads % kv_heads:
        raise Refused(
            f"{heads} heads do not fit this checkpoint: its attention is {wide} wide, with {rows} rows of queries, keys and values",
            hint="--heads of the training program",
        )
    return head_dim, kv_heads


def _described(source: CheckpointSource) -> dict[str, Any]:
    """The content of model.json in the kit's own checkpoints, else Megatron-LM's arguments in common.pt."""
    if source.model:
        return source.model
    args = source.common.get("args")
    if not isinstance(args, argparse.Namespace):
        return {}
    return {
        "heads": getattr(args, "num_attention_heads", None),
        "head_dim": getattr(args, "kv_channels", None),
        "context": getattr(args, "max_position_embeddings", None),
        "norm_eps": getattr(args, "norm_epsilon", None),
        "rope_base": getattr(args, "rotary_base", None),
    }


def not_llama(source: CheckpointSource) -> str | None:
    """The reason why Megatron-LM's arguments describe no Llama: the first such argument. None if the model is a Llama."""
    args = source.common.get("args")
    if not isinstance(args, argparse.Namespace):
        return None
    needed = {
        "normalization": "RMSNorm",
        "apply_layernorm_1p": False,
        "swiglu": True,
        "position_embedding_type": "rope",
        "rotary_percent": 1.0,
        "rotary_interleaved": False,
        "use_rope_scaling": False,
        "rotary_seq_len_interpolation_factor": None,
        "add_bias_linear": False,
        "num_experts": None,
    }
    for name, value in needed.items():
        if getattr(args, name, value) != value:
            return f"{name} is {getattr(args, name)!r}, and Llama's is {json.dumps(value)}"
    return None
