"""A checkpoint that is one file already, state.pt: what launchers/ddp writes. Mapped: no more of it is read than is asked for."""

from pathlib import Path

import torch
from faults import Refused
from progress import Progress
from source import Piece, Source, check_sums, family, read_json, resolve

FILE = "state.pt"


class Plain(Source):
    """Has the model under "model" and the step under "at"; the attributes are Source's."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder = resolve(folder)
        marker, self.model = read_json(self.folder / "complete.json"), read_json(self.folder / "model.json")
        if marker:
            check_sums(self.folder, marker["files"], progress)
        try:
            content = torch.load(self.folder / FILE, map_location="cpu", weights_only=True, mmap=True)
            self._weights: dict[str, torch.Tensor] = content["model"]
            self.step = content["at"]["step"]
        except Exception as error:  # noqa: BLE001 - a damaged file can raise anything
            raise Refused(f"{self.folder / FILE}: not a checkpoint of launchers/ddp: {error}") from None
        self.pieces = [Piece(name, name, None, tuple(one.shape), one.dtype) for name, one in self._weights.items()]
        self.kind, self.common, self.dropped = family(set(self._weights)), {}, []

    def read(self, piece: Piece) -> torch.Tensor:
        """One tensor."""
        return self._weights[piece.stored].contiguous()


def opened(folder: Path, progress: Progress) -> Source:
    """The checkpoint in a folder, of whichever kind it is."""
    return Plain(folder, progress) if (resolve(folder) / FILE).is_file() else Source(folder, progress)
