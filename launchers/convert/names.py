"""Maps the tensors of a model to those of Hugging Face's Llama, Qwen2 or Qwen3: their names, and the splits of fused weights.

Megatron fuses queries, keys and values by query group: each group has its query heads, one key head and one value head. The GPT of
launchers/lib/model.py stacks all queries, all keys, all values. Both stack the feed-forward part's gate on its up projection.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from lib.faults import Refused
from shapes import DecoderShape
from source import CheckpointSource, TensorPiece

Split = Callable[[torch.Tensor], list[torch.Tensor]]

_WHOLE = {
    "megatron": {
        "embedding.word_embeddings.weight": "model.embed_tokens.weight",
        "decoder.final_layernorm.weight": "model.norm.weight",
        "output_layer.weight": "lm_head.weight",
    },
    "gpt": {
        "embedding.weight": "model.embed_tokens.weight",
        "norm.weight": "model.norm.weight",
        "head.weight": "lm_head.weight",
    },
}
_LAYER = {
    "megatron": re.compile(r"decoder\.layers\.(\d+)\.(.+)"),
    "gpt": re.compile(r"blocks\.(\d+)\.(.+)"),
}
# Transformer Engine fuses a norm with the linear layer after it, and names the norm after that layer. Checkpoints of both kinds of
# layers use this name.
_QKV = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")
_GATED = ("mlp.gate_proj.weight", "mlp.up_proj.weight")
_IN_LAYER = {
    "megatron": {
        "self_attention.linear_qkv.layer_norm_weight": ("input_layernorm.weight",),
        "input_layernorm.weight": ("input_layernorm.weight",),
        "self_attention.linear_qkv.weight": _QKV,
        "self_attention.linear_qkv.bias": tuple(name.replace("weight", "bias") for name in _QKV),
        "self_attention.q_layernorm.weight": ("self_attn.q_norm.weight",),
        "self_attention.k_layernorm.weight": ("self_attn.k_norm.weight",),
        "self_attention.linear_proj.weight": ("self_attn.o_proj.weight",),
        "mlp.linear_fc1.layer_norm_weight": ("post_attention_layernorm.weight",),
        "pre_mlp_layernorm.weight": ("post_attention_layernorm.weight",),
        "mlp.linear_fc1.weight": _GATED,
        "mlp.linear_fc2.weight": ("mlp.down_proj.weight",),
    },
    "gpt": {
        "attention_norm.weight": ("input_layernorm.weight",),
        "qkv.weight": _QKV,
        "qkv.bias": tuple(name.replace("weight", "bias") for name in _QKV),
        "query_norm.weight": ("self_attn.q_norm.weight",),
        "key_norm.weight": ("self_attn.k_norm.weight",),
        "attention_out.weight": ("self_attn.o_proj.weight",),
        "feed_norm.weight": ("post_attention_layernorm.weight",),
        "gate_up.weight": _GATED,
        "down.weight": ("mlp.down_proj.weight",),
    },
}


# Tensors that only Qwen2 (the bias) and Qwen3 (the norms) have.
_OF_QWEN = {
    "gpt": ("qkv.bias", "query_norm.weight", "key_norm.weight"),
    "megatron": (
        "self_attention.linear_qkv.bias",
        "self_attention.q_layernorm.weight",
        "self_attention.k_layernorm.weight",
    ),
}
_FIRST = {"gpt": "blocks.0.", "megatron": "decoder.layers.0."}


@dataclass(frozen=True)
class TensorGroup:
    """A tensor of the source, and the tensors that it becomes: their names, and their shapes in the same order."""

    piece: TensorPiece
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    split: Split


def llama(source: CheckpointSource, shape: DecoderShape) -> list[TensorGroup]:
    """Every tensor of LlamaForCausalLM, from the embedding to the head. Refused when the source is not a Llama."""
    groups = [_group(piece, source, shape) for piece in source.pieces]
    groups.sort(key=lambda group: _order(group.names[0]))
    made = {name for group in groups for name in group.names}
    has = {piece.name for piece in source.pieces}
    layer = {
        name
        for piece, names in _IN_LAYER[source.kind].items()
        if piece not in _OF_QWEN[source.kind] or f"{_FIRST[source.kind]}{piece}" in has
        for name in names
    }
    wanted = {f"model.layers.{number}.{name}" for number in range(shape.layers) for name in layer}
    wanted |= set(_WHOLE[source.kind].values()) - ({"lm_head.weight"} if shape.tied_embeddings else set())
    if missing := sorted(wanted - made):
        raise Refused(
            f"{source.folder}: incomplete, or no Llama: nothing in it becomes {missing[0]} ({len(missing)} missing)"
        )
    return groups


def _group(piece: TensorPiece, source: CheckpointSource, shape: DecoderShape) -> TensorGroup:
    whole = _WHOLE[source.kind].get(piece.name)
    in_layer = _LAYER[source.kind].fullmatch(piece.name)
    if whole is not None:
        names: tuple[str, ...] = (whole,)
    elif in_layer is not None and in_layer[2] in _IN_LAYER[source.kind]:
        names = tuple(f"model.layers.{in_layer[1]}.{name}" for name in _IN_LAYER[source.kind][in_layer[2]])
    else:
        raise Refused(
            f"{source.folder}: its model is not of the Llama family: Llama has no counterpart of {piece.name}",
            hint="--to pytorch keeps any model",
        )
    assert shape.heads and shape.kv_heads and shape.head_dim
    split: Split = lambda tensor: [tensor]  # noqa: E731
    rows: tuple[int, ...] = piece.shape[:1]
    if len(names) == len(_QKV):
        rows = tuple(heads * shape.head_dim for heads in (shape.heads, shape.kv_heads, shape.kv_heads))
        split = _split_by_group(shape) if source.kind == "megatron" else lambda tensor: list(tensor.split(rows))
    elif len(names) == len(_GATED):
        rows = (shape.feed_forward, shape.feed_forward)
        split = lambda tensor: list(tensor.split(rows))  # noqa: E731
    if sum(rows) != piece.shape[0]:
        what = "its feed-forward part is not gated" if len(names) == len(_GATED) else "its layers differ in size"
        raise Refused(
            f"{source.folder}: its model is not of the Llama family: {what} ({piece.name} has {piece.shape[0]} rows)"
        )
    return TensorGroup(piece, names, tuple((count, *piece.shape[1:]) for count in rows), split)


def _split_by_group(shape: DecoderShape) -> Split:
    assert shape.heads and shape.kv_heads
    groups, each = shape.kv_heads, shape.heads // shape.kv_heads

    def split(tensor: torch.Tensor) -> list[torch.Tensor]:
        fused = tensor.view(groups, each + 2, shape.head_dim, -1)  # group, its queries then key then value, row, column
        parts = (fused[:, :each], fused[:, each], fused[:, each + 1])
        return [part.reshape(-1, *tensor.shape[1:]) for part in parts]  # a bias has a single column

    return split


def _order(name: str) -> tuple[int, int]:
    """The sort key of a tensor, in the order in which files are filled: embedding, layers by number, norm, head."""
    in_layer = re.match(r"model\.layers\.(\d+)\.", name)
    if in_layer:
        return 1, int(in_layer[1])
    return {"model.embed_tokens.weight": 0, "model.norm.weight": 2}.get(name, 3), 0
