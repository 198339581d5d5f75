"""`kit checkpoint-size`: the model's shape from options or a config.json, and what is on the disk to compare with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import RunError, UsageError
from kit.frameworks import sizes
from kit.frameworks.sizes import Layout, Optimizer, Precision, Shape

# A reference program's own, when nothing is said: the feed-forward part is four times as wide as the model.
_WIDER = 4

# Shape's fields -> keys of a Hugging Face config.json.
_KEYS = {
    "layers": "num_hidden_layers",
    "dim": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "feed_forward": "intermediate_size",
    "vocabulary": "vocab_size",
    "tied": "tie_word_embeddings",
}
_OPTIONS = {"feed_forward": "--ffn"}


@dataclass(frozen=True, kw_only=True)
class OnDisk:
    """What was found. weights_only: a .pt or safetensors, without an optimizer. files: how many hold tensors; size: their bytes."""

    path: Path
    weights_only: bool
    files: int
    size: int


def shape(options: dict[str, int | bool | None], config: Path | None) -> Shape:
    """The shape: options win over `config`. UsageError that names what is missing; RunError for a file that is no config.json."""
    known: dict[str, Any] = {} if config is None else _read(config)
    known |= {name: value for name, value in options.items() if value is not None}
    missing = [name for name in ("layers", "dim", "heads", "vocabulary") if known.get(name) is None]
    if missing:
        names = ", ".join(_OPTIONS.get(name, f"--{name}") for name in missing)
        raise UsageError(f"the shape is not complete: {names}", hint="give them, or --config with a config.json")
    if known.get("head_dim") is None and known["dim"] % known["heads"]:
        raise UsageError(f"--heads {known['heads']} must divide --dim {known['dim']}", hint="or give --head-dim")
    return Shape(
        layers=known["layers"],
        dim=known["dim"],
        heads=known["heads"],
        kv_heads=known.get("kv_heads") or known["heads"],
        head_dim=known.get("head_dim") or known["dim"] // known["heads"],
        feed_forward=known.get("feed_forward") or _WIDER * known["dim"],
        vocabulary=known["vocabulary"],
        tied=bool(known.get("tied")),
    )


def facts(
    shape: Shape, layout: Layout, precision: Precision, optimizer: Optimizer, *, keep: int, compare: Path | None
) -> dict[str, Any]:
    """What is predicted, in bytes, and beside it what is at `compare`. RunError when there is no checkpoint."""
    predicted = sizes.of(shape.parameters, precision, optimizer, distributed_optimizer=layout.distributed_optimizer)
    found = {
        "parameters": shape.parameters,
        "weights": predicted.weights,
        "master": predicted.master,
        "moments": predicted.moments,
        "total": predicted.total,
        # One more than is kept: the oldest goes when the newest is whole.
        "disk": predicted.total * (keep + 1),
    }
    if layout.tp * layout.pp * layout.dp > 1:
        found["largest_rank"] = sizes.largest_share(shape, precision, optimizer, layout)
    return found if compare is None else {**found, "compare": _compared(on_disk(compare), predicted)}


def _compared(found: OnDisk, predicted: sizes.Bytes) -> dict[str, Any]:
    expected = predicted.weights if found.weights_only else predicted.total
    return {
        "path": str(found.path),
        "files": found.files,
        "on_disk": found.size,
        "predicted": expected,
        "difference": found.size - expected,
    }


def on_disk(path: Path) -> OnDisk:
    """What is at `path`: a sharded checkpoint, the folder that they are saved in, a Hugging Face folder, or a .pt file."""
    if path.is_file():
        return OnDisk(path=path, weights_only=True, files=1, size=path.stat().st_size)
    latest = path / "latest"
    if latest.is_file():
        path = path / latest.read_text(encoding="utf-8").strip()
    for pattern, weights_only in (("*.distcp", False), ("*.safetensors", True)):
        sizes = [one.stat().st_size for one in sorted(path.glob(pattern))]
        if sizes:
            return OnDisk(path=path, weights_only=weights_only, files=len(sizes), size=sum(sizes))
    raise RunError(
        f"{path}: no checkpoint that can be compared",
        hint="a folder with *.distcp or *.safetensors, or a file that 'kit convert-checkpoint --to pytorch' made",
    )


def _read(config: Path) -> dict[str, Any]:
    path = config / "config.json" if config.is_dir() else config
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {name: content[key] for name, key in _KEYS.items() if content.get(key) is not None}
    except (OSError, ValueError, AttributeError) as error:
        raise RunError(f"{path}: cannot be read as a config.json: {error}") from None
