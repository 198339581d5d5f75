"""`kit checkpoint-size`: predicts the size of a checkpoint, and compares it with one on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import RunError
from kit.files import untrusted_files
from kit.model_size import (
    CheckpointBytes,
    ModelShape,
    Optimizer,
    Parallelism,
    Precision,
    checkpoint_bytes,
    largest_share,
)


@dataclass(frozen=True, kw_only=True)
class OnDisk:
    """A checkpoint on disk.

    weights_only: a .pt or safetensors, without an optimizer. files: number of tensor files. size: in bytes.
    """

    path: Path
    weights_only: bool
    files: int
    size: int


def facts(
    shape: ModelShape,
    parallel: Parallelism,
    precision: Precision,
    optimizer: Optimizer,
    *,
    keep: int,
    compare: Path | None,
) -> dict[str, Any]:
    """The predicted sizes in bytes, and the size of the checkpoint at `compare`. RunError when there is no checkpoint."""
    predicted = checkpoint_bytes(
        shape.parameters, precision, optimizer, distributed_optimizer=parallel.distributed_optimizer
    )
    sizes = {
        "parameters": shape.parameters,
        "weights": predicted.weights,
        "master": predicted.master,
        "moments": predicted.moments,
        "total": predicted.total,
        # One more than `keep`: the oldest is removed only when the newest is complete.
        "disk": predicted.total * (keep + 1),
    }
    if parallel.tp * parallel.pp * parallel.dp > 1:
        sizes["largest_rank"] = largest_share(shape, precision, optimizer, parallel)
    return sizes if compare is None else {**sizes, "compare": _compared(on_disk(compare), predicted)}


def _compared(checkpoint: OnDisk, predicted: CheckpointBytes) -> dict[str, Any]:
    expected = predicted.weights if checkpoint.weights_only else predicted.total
    return {
        "path": str(checkpoint.path),
        "files": checkpoint.files,
        "on_disk": checkpoint.size,
        "predicted": expected,
        "difference": checkpoint.size - expected,
    }


def on_disk(path: Path) -> OnDisk:
    """The checkpoint at `path`: a sharded one, a folder of several, a Hugging Face folder, or a .pt file."""
    if path.is_file():
        return OnDisk(path=path, weights_only=True, files=1, size=path.stat().st_size)
    latest = path / "latest"
    if latest.is_file():
        path = path / untrusted_files.read_text(latest, most=4096).strip()
    for pattern, weights_only in (("*.distcp", False), ("*.safetensors", True)):
        sizes = [one.stat().st_size for one in sorted(path.glob(pattern))]
        if sizes:
            return OnDisk(path=path, weights_only=weights_only, files=len(sizes), size=sum(sizes))
    raise RunError(
        f"{path}: not a checkpoint that can be compared",
        hint="a folder with *.distcp or *.safetensors, or a file that 'kit convert-checkpoint --to pytorch' made",
    )
