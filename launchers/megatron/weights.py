"""Puts Hugging Face weights (lib/huggingface.py) into the tensors of megatron.core: this rank's stage, and its shards.

Megatron fuses queries, keys and values by group: the query heads of a group, one key head, one value head. A rank of --tp holds
whole groups. Of the gate and the up projection, a rank holds its rows of both.
"""

from pathlib import Path

import torch
from lib import huggingface, model
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel

# Megatron's name -> the name in lib/model.py, whose names lib/huggingface.py reads.
_OUTSIDE_BLOCKS = {
    "embedding.word_embeddings.weight": "embedding.weight",
    "decoder.final_layernorm.weight": "norm.weight",
    "output_layer.weight": "head.weight",
}
# Where Transformer Engine fuses a norm with the linear layer after it, the norm has that layer's name.
_IN_LAYER = {
    "input_layernorm.weight": "attention_norm.weight",
    "self_attention.linear_qkv.layer_norm_weight": "attention_norm.weight",
    "self_attention.linear_qkv.weight": "qkv.weight",
    "self_attention.linear_qkv.bias": "qkv.bias",
    "self_attention.q_layernorm.weight": "query_norm.weight",
    "self_attention.k_layernorm.weight": "key_norm.weight",
    "self_attention.linear_proj.weight": "attention_out.weight",
    "pre_mlp_layernorm.weight": "feed_norm.weight",
    "mlp.linear_fc1.layer_norm_weight": "feed_norm.weight",
    "mlp.linear_fc1.weight": "gate_up.weight",
    "mlp.linear_fc2.weight": "down.weight",
}


@torch.no_grad()
def put(net: GPTModel, folder: Path, shape: model.GPTShape) -> None:
    """Set this rank's parameters, one after the other."""
    read = huggingface.reader(folder, shape)
    # Of --tp alone: named_parameters() has the stage's layers only, and data and context parallel ranks hold the same.
    rank, ranks = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()
    for name, parameter in net.named_parameters():
        ours = renamed(name, net)
        whole = read(ours, 0, rows(ours, shape))  # (rows, columns), or (rows,) of a norm or bias, in host memory
        in_block = ours.split(".", 2)[2] if ours.startswith("blocks.") else ours  # blocks.7.qkv.weight -> qkv.weight
        parameter.copy_(cut(in_block, whole, shape, rank, ranks))


def renamed(name: str, net: GPTModel) -> str:
    """The name that the GPT of lib/model.py gives to a parameter."""
    if name in _OUTSIDE_BLOCKS:
        return _OUTSIDE_BLOCKS[name]
    # decoder.layers.0.mlp.linear_fc1.weight: `number` counts from 0 in this stage, layer_number from 1 over all stages.
    _, _, number, rest = name.split(".", 3)
    return f"blocks.{net.decoder.layers[int(number)].layer_number - 1}.{_IN_LAYER[rest]}"


def rows(name: str, shape: model.GPTShape) -> int:
    """The number of rows of a whole parameter of the GPT."""
    last = name.rpartition(".")[0].rpartition(".")[2]  # blocks.7.qkv.weight -> qkv
    # Letters as in lib/model.py. embedding and head are (V, C), gate_up is (2F, C), qkv is ((H + 2K) * D, C).
    known = {"embedding": shape.vocabulary, "head": shape.vocabulary, "gate_up": 2 * shape.wide}
    known |= {"qkv": (shape.heads + 2 * shape.keys) * shape.each, "query_norm": shape.each, "key_norm": shape.each}
    return known.get(last, shape.dim)  # attention_out (C, H * D), down (C, F), other norms (C,)


def cut(name: str, whole: torch.Tensor, shape: model.GPTShape, rank: int, ranks: int) -> torch.Tensor:
    """The part of a parameter that a tensor parallel rank holds, in Megatron's order. name: without its block."""
    if name.startswith("qkv."):
        # queries (H * D, C), keys (K * D, C), values (K * D, C); a bias has no C
        parts = whole.split([heads * shape.each for heads in (shape.heads, shape.keys, shape.keys)])
        by_group = [part.reshape(shape.keys, -1, *whole.shape[1:]) for part in parts]  # each [groups, rows, columns]
        # (K, H / K * D, C) and twice (K, D, C) -> (K, (H / K + 2) * D, C): the rows of a group follow each other. A rank takes
        # K / tp groups, and its attention needs no other rank: (K / tp * (H / K + 2) * D, C).
        return torch.cat(by_group, 1).chunk(ranks)[rank].flatten(0, 1)
    if name.startswith("gate_up."):
        # Gate row i is multiplied with up row i, so a rank needs the same rows of both: twice (F / tp, C) -> (2F / tp, C).
        return torch.cat([part.chunk(ranks)[rank] for part in whole.chunk(2)])
    if name.startswith(("attention_out.", "down.")):
        # Cut along the inputs, (C, H * D / tp) or (C, F / tp). RowParallelLinear sums the ranks' outputs.
        return whole.chunk(ranks, 1)[rank]
    # Cut by tokens, (V / tp, C). Every rank of --tp has whole norms.
    return whole.chunk(ranks)[rank] if name.startswith(("embedding.", "head.")) else whole
