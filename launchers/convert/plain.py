"""Checkpoints that torch.save wrote. They are memory-mapped, so that only the requested tensors are read.

state.pt of launchers/ddp, sft and rl holds a whole model. rank-<n>.pt of launchers/diloco holds the parameters that all groups
share, or, with FSDP in a group, each rank's rows of them.
"""

import json
from pathlib import Path

import torch
from lib.faults import Refused
from lib.progress import ProgressPrinter
from source import CheckpointSource, TensorPiece, check_sums, family, read_json, resolve

FILE, SHARED, AT = "state.pt", "rank-0.pt", "at.json"


class PlainCheckpoint(CheckpointSource):
    """A checkpoint with the model under "model" and the step under "at". Its attributes are those of CheckpointSource."""

    def __init__(self, folder: Path, progress: ProgressPrinter) -> None:
        self.folder = resolve(folder)
        marker, self.model = read_json(self.folder / "complete.json"), read_json(self.folder / "model.json")
        if marker:
            check_sums(self.folder, marker["files"], progress)
        try:
            content = torch.load(self.folder / FILE, map_location="cpu", weights_only=True, mmap=True)
            self._weights: dict[str, torch.Tensor] = content["model"]
            self.step = content["at"]["step"]
        except Exception as error:  # noqa: BLE001 - a damaged file can raise anything
            raise Refused(f"{self.folder / FILE}: not a checkpoint of launchers/ddp, sft or rl: {error}") from None
        self.pieces = [
            TensorPiece(name, name, None, tuple(one.shape), one.dtype) for name, one in self._weights.items()
        ]
        self.kind, self.common, self.dropped = family(set(self._weights)), {}, []

    def read(self, piece: TensorPiece) -> torch.Tensor:
        """One tensor."""
        return self._weights[piece.stored].contiguous()


class Shared(CheckpointSource):
    """A checkpoint of launchers/diloco: the parameters that all groups share. Its attributes are those of CheckpointSource."""

    def __init__(self, folder: Path, progress: ProgressPrinter) -> None:
        self.folder = folder
        marker, self.model = read_json(folder / "complete.json"), read_json(folder / "model.json")
        if marker:
            check_sums(folder, marker["files"], progress)
        files = sorted(folder.glob("rank-*.pt"), key=lambda path: int(path.stem[5:]))
        try:
            self._parts: list[dict[str, torch.Tensor]] = [
                torch.load(path, map_location="cpu", weights_only=True, mmap=True)["globals"]["values"]
                for path in files
            ]
            self.step = read_json(folder / AT)["step"]
        except Exception as error:  # noqa: BLE001 - a damaged file can raise anything
            raise Refused(f"{folder}: not a checkpoint of launchers/diloco: {error}") from None
        self.pieces = [self._piece(name) for name in self._parts[0]]
        self.kind, self.common, self.dropped = family(set(self._parts[0])), {}, []

    def read(self, piece: TensorPiece) -> torch.Tensor:
        """One tensor, joined from the ranks' rows."""
        return torch.cat([part[piece.stored] for part in self._parts])

    def _piece(self, name: str) -> TensorPiece:
        first = self._parts[0][name]
        rows = sum(len(part[name]) for part in self._parts)
        return TensorPiece(name, name, None, (rows, *first.shape[1:]), first.dtype)


def opened(folder: Path, progress: ProgressPrinter) -> CheckpointSource:
    """The checkpoint in a folder, of any kind that can be read."""
    folder = resolve(_furthest_group(folder))
    if (folder / FILE).is_file():
        return PlainCheckpoint(folder, progress)
    return Shared(folder, progress) if (folder / AT).is_file() else CheckpointSource(folder, progress)


def _furthest_group(folder: Path) -> Path:
    """The folder of the group with the most outer steps, where `folder` is of a DiLoCo run; else `folder`."""

    def outer_steps(group: Path) -> int:
        try:
            return int(json.loads((resolve(group) / AT).read_text(encoding="utf-8"))["outer"])
        except (OSError, ValueError, KeyError):
            return -1

    groups = sorted(path.parent for path in folder.glob("replica-*/latest"))
    return max(groups, key=outer_steps, default=folder)
