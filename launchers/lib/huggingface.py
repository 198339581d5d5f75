"""Starts a GPT of lib/model.py from a Hugging Face folder with config.json and *.safetensors: Llama, Qwen2, Qwen3.

    --init-from Llama-3.2-1B/        the model's shape, and its weights instead of random ones

A rank reads only the rows that it holds. `kit convert-checkpoint --to huggingface` writes such a folder again. Embeddings that are
tied to the head are not tied here: the head starts as a copy of them.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import initial, model

# model_type of config.json -> (biases of queries, keys and values; norms of queries and keys in each head).
FAMILIES = {"llama": (False, False), "qwen2": (True, False), "qwen3": (False, True)}
# Values that config.json must have where it has the key. Other values mean other models.
_REQUIRED: dict[str, Any] = {
    "hidden_act": "silu",
    "mlp_bias": False,
    "attention_bias": False,
    "use_sliding_window": False,
    "num_experts": None,
    "pretraining_tp": 1,
}
_QKV = ("q_proj", "k_proj", "v_proj")
_IN_BLOCK = {
    "attention_norm.weight": ("input_layernorm.weight",),
    "qkv.weight": tuple(f"self_attn.{one}.weight" for one in _QKV),
    "qkv.bias": tuple(f"self_attn.{one}.bias" for one in _QKV),
    "query_norm.weight": ("self_attn.q_norm.weight",),
    "key_norm.weight": ("self_attn.k_norm.weight",),
    "attention_out.weight": ("self_attn.o_proj.weight",),
    "feed_norm.weight": ("post_attention_layernorm.weight",),
    "gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down.weight": ("mlp.down_proj.weight",),
}
_OUTSIDE_BLOCKS = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}


def shape(folder: Path, *, context: int, vocabulary: int) -> model.GPTShape:
    """The model's shape. context: length of the sequences to train on. vocabulary: the data's, which the model's must hold."""
    config = _config(folder)
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise SystemExit(f"{folder}: its model is {kind!r}; --init-from takes {', '.join(FAMILIES)}.")
    for name, value in _REQUIRED.items():
        if config.get(name, value) != value:
            raise SystemExit(f"{folder}: {name} is {config[name]!r} in config.json; only {value!r} can be taken.")
    if context > config["max_position_embeddings"]:
        raise SystemExit(
            f"--context {context} is longer than the model's {config['max_position_embeddings']} positions."
        )
    if vocabulary > config["vocab_size"]:
        raise SystemExit(
            f"the data have {vocabulary} different tokens, and the model knows {config['vocab_size']}: "
            "prepare them with the model's own --tokenizer."
        )
    rope = config.get("rope_parameters") or {
        **(config.get("rope_scaling") or {}),
        "rope_theta": config.get("rope_theta"),
    }
    bias, norms = FAMILIES[kind]
    heads = config["num_attention_heads"]
    return model.GPTShape(
        layers=config["num_hidden_layers"],
        heads=heads,
        dim=config["hidden_size"],
        context=context,
        vocabulary=config["vocab_size"],
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        feed_forward=config["intermediate_size"],
        norm_eps=config["rms_norm_eps"],
        rope_base=float(rope.get("rope_theta") or 10000.0),
        rope_scaling=_scaling(folder, rope),
        qkv_bias=bias,
        head_norms=norms,
    )


def chosen(args: argparse.Namespace, vocabulary: int) -> model.GPTShape:
    """The shape that the options of a GPT program ask for: the one of --init-from, else of --layers, --heads and --dim."""
    if args.init_from is not None:
        return shape(args.init_from, context=args.context, vocabulary=vocabulary)
    size = {"layers": args.layers, "heads": args.heads, "dim": args.dim, "context": args.context}
    return model.GPTShape(**size, vocabulary=vocabulary)


@torch.no_grad()
def begin(net: model.GPT, args: argparse.Namespace, device: torch.device) -> None:
    """Give a model on the meta device its memory, and set its weights, or this rank's shards: from --init-from, or random ones."""
    net.to_empty(device=device)
    put = setter(net, args)
    for name, mine, first, rows in initial.shards(net):
        put(name, mine, first, rows)


def setter(net: model.GPT, args: argparse.Namespace) -> Callable[[str, torch.Tensor, int, int], None]:
    """A function that sets rows of a parameter to their first values: name, rows, number of the first row, total of rows."""
    if args.init_from is None:
        return lambda name, mine, first, rows: initial.values(
            mine, name, first=first, rows=rows, std=net.std(name), seed=args.seed
        )
    read = reader(args.init_from, net.shape)

    def copy_rows(name: str, mine: torch.Tensor, first: int, _rows: int) -> None:
        if len(mine):
            mine.copy_(read(name, first, first + len(mine)))

    return copy_rows


def reader(folder: Path, shape: model.GPTShape) -> Callable[[str, int, int], torch.Tensor]:
    """A function that reads rows of a parameter of the GPT: name, first row, the row after the last -> tensor."""
    from safetensors import safe_open  # noqa: PLC0415 - only where weights are imported

    files = [safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))]
    held = {name: file for file in files for name in file.keys()}  # noqa: SIM118 - safe_open is not a mapping
    if not held:
        raise SystemExit(f"{folder}: no *.safetensors in it: neither a model's folder nor a downloaded one.")
    heads, each = (shape.heads, shape.kv_heads or shape.heads), shape.head_dim or shape.dim // shape.heads
    rows = {"q_proj": heads[0] * each, "k_proj": heads[1] * each, "v_proj": heads[1] * each}

    def read(name: str, first: int, last: int) -> torch.Tensor:
        found, start = [], 0
        for part in names(name, held.keys()):
            if part not in held:
                raise SystemExit(
                    f"{folder}: {part} is in none of its files: the folder is incomplete, or has another kind of model."
                )
            one = held[part].get_slice(part)
            size, want = one.get_shape()[0], rows.get(part.split(".")[-2])
            if want is not None and size != want:
                raise SystemExit(f"{folder}: {part} has {size} rows, and config.json asks for {want}.")
            low, high = max(first - start, 0), min(last - start, size)
            if low < high:
                found.append(one[low:high])
            start += size
        return torch.cat(found)

    return read


def names(name: str, held: Any) -> tuple[str, ...]:
    """The tensors of the Hugging Face model that, one after the other, make up a parameter of the GPT."""
    if name == "head.weight" and _OUTSIDE_BLOCKS[name] not in held:
        return (_OUTSIDE_BLOCKS["embedding.weight"],)  # the head is tied to the embedding
    if name in _OUTSIDE_BLOCKS:
        return (_OUTSIDE_BLOCKS[name],)
    _, number, rest = name.split(".", 2)
    return tuple(f"model.layers.{number}.{part}" for part in _IN_BLOCK[rest])


def _config(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"--init-from {folder}: no model of Hugging Face: config.json: {error}") from None
    return config


def _scaling(folder: Path, rope: dict[str, Any]) -> tuple[float, float, float, float] | None:
    """Llama 3's scaling of rotary positions: factor, low and high frequency factor, original length. None: no scaling."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise SystemExit(f"{folder}: rotary positions of type {kind!r}; 'default' and 'llama3' can be taken.")
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, length = (float(rope[key]) for key in keys)
    return factor, low, high, length
