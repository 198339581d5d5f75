"""Writes one .pt file with model_state_dict and model_config, which torch.load(..., weights_only=True) reads.

torch first lays out the file without the tensors' data. Then each tensor is written to its place. Memory holds one tensor and one
stored chunk of it. The checksums in the file are not filled in, and torch does not check them.
"""

import os
from pathlib import Path
from typing import Any

import torch
from lib.progress import ProgressPrinter
from source import CheckpointSource
from torch._subclasses.fake_tensor import FakeTensorMode


def write(path: Path, source: CheckpointSource, config: dict[str, Any], progress: ProgressPrinter) -> None:
    """Write the file, which must not exist. The names are those of the source, with one tensor for each layer."""
    with FakeTensorMode():
        empty = {piece.name: torch.empty(piece.shape, dtype=piece.dtype) for piece in source.pieces}
    with torch.serialization.skip_data(materialize_fake_tensors=True):
        torch.save({"model_state_dict": empty, "model_config": config}, path)
    with FakeTensorMode():
        laid_out = torch.load(path, weights_only=True)["model_state_dict"]
    with path.open("r+b") as file, progress.counting("converting", source.bytes) as advance:
        for piece in source.pieces:
            if not piece.bytes:
                continue
            data = memoryview(source.read(piece).reshape(-1).view(torch.uint8).numpy())
            file.seek(laid_out[piece.name].untyped_storage()._checkpoint_offset)  # see skip_data in torch
            file.write(data)
            advance(piece.bytes)
        file.flush()
        os.fsync(file.fileno())
