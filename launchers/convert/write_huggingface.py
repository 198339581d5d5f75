"""Writes a folder that transformers loads as LlamaForCausalLM, or Qwen2's or Qwen3's: config.json, model*.safetensors, their index.

Memory holds the tensors of one output file (--shard-size, or one tensor that is larger) and one stored chunk.
"""

import json
from pathlib import Path
from typing import Any

import torch
from lib.faults import Refused
from lib.progress import ProgressPrinter
from names import TensorGroup, llama
from shapes import DecoderShape, not_llama
from source import CheckpointSource

try:
    from safetensors.torch import save_file
except ModuleNotFoundError:
    save_file = None

# max_position_embeddings where the longest sequence is not known: Llama's own. No weight depends on it.
_CONTEXT = 2048


def check(source: CheckpointSource, shape: DecoderShape | None) -> list[TensorGroup]:
    """The tensors to write. Refused, with the reason, where the model cannot be written."""
    if save_file is None:
        raise Refused(
            "the Python that converts lacks the package 'safetensors'",
            hint="use an image whose requirements.in names it",
        )
    reason = not_llama(source)
    if shape is None:
        reason = "its tensors have neither the names of megatron's GPT nor those of launchers/lib/model.py"
    if shape is None or reason:
        raise Refused(
            f"{source.folder}: its model is not of the Llama family: {reason}", hint="--to pytorch keeps any model"
        )
    if shape.heads is None:
        raise Refused(
            f"{source.folder}: nothing in the checkpoint tells how many attention heads the model has",
            hint="give --heads, the number that the model was trained with",
        )
    return llama(source, shape)


def write(
    folder: Path,
    source: CheckpointSource,
    shape: DecoderShape,
    groups: list[TensorGroup],
    *,
    shard_size: int,
    progress: ProgressPrinter,
) -> list[Path]:
    """Write the folder, which must not exist. Returns its files."""
    folder.mkdir()
    shards = _shards(groups, shard_size)
    single = len(shards) == 1
    weight_map: dict[str, str] = {}
    with progress.counting("converting", source.bytes) as advance:
        for number, shard in enumerate(shards, 1):
            name = "model.safetensors" if single else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            tensors: dict[str, torch.Tensor] = {}
            for group in shard:
                parts = group.split(source.read(group.piece))
                # A part may be a view of the whole tensor. Saving a view would store the whole tensor with each part.
                tensors |= {
                    to: part.clone() if len(parts) > 1 else part for to, part in zip(group.names, parts, strict=True)
                }
                advance(group.piece.bytes)
            save_file(tensors, folder / name, metadata={"format": "pt"})
            (folder / name).chmod(folder.stat().st_mode & 0o666)  # safetensors lets only the user read its files
            weight_map |= dict.fromkeys(tensors, name)
    if not single:
        index = {"metadata": {"total_size": source.bytes}, "weight_map": dict(sorted(weight_map.items()))}
        _write_json(folder / "model.safetensors.index.json", index)
    _write_json(folder / "config.json", _config(shape, groups[0].piece.dtype))
    if shape.context is None:
        progress.warn(
            f"the longest sequence is not known: max_position_embeddings is {_CONTEXT} in config.json; or give --context"
        )
    return sorted(folder.iterdir())


def _shards(groups: list[TensorGroup], shard_size: int) -> list[list[TensorGroup]]:
    """The tensors of each file, in order. A tensor that is larger than a file may be gets its own file."""
    shards: list[list[TensorGroup]] = []
    filled = 0
    for group in groups:
        if not shards or filled + group.piece.bytes > shard_size:
            shards.append([])
            filled = 0
        shards[-1].append(group)
        filled += group.piece.bytes
    return shards


def _rope(shape: DecoderShape) -> dict[str, Any]:
    """The rotary positions, as transformers 5 reads them."""
    if shape.rope_scaling is None:
        return {"rope_type": "default", "rope_theta": shape.rope_base}
    factor, low, high, length = shape.rope_scaling
    scaled = {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}
    return {
        "rope_type": "llama3",
        "rope_theta": shape.rope_base,
        **scaled,
        "original_max_position_embeddings": int(length),
    }


def _config(shape: DecoderShape, dtype: torch.dtype) -> dict[str, Any]:
    family = "Qwen2" if shape.qkv_bias else "Qwen3" if shape.head_norms else "Llama"
    rope = _rope(shape)
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    return {
        "architectures": [f"{family}ForCausalLM"],
        "model_type": family.lower(),
        "hidden_act": "silu",
        "hidden_size": shape.dim,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context or _CONTEXT,
        "rms_norm_eps": shape.norm_eps,
        # transformers 5 reads rope_parameters and dtype, transformers 4 the other two.
        "rope_parameters": rope,
        "rope_theta": shape.rope_base,
        **({"rope_scaling": scaling} if shape.rope_scaling else {}),
        "dtype": str(dtype).removeprefix("torch."),
        "torch_dtype": str(dtype).removeprefix("torch."),
        "tie_word_embeddings": shape.tied_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        # The tokenizer is not converted: no token is special until the user names it.
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
