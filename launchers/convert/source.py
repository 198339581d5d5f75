"""A checkpoint of torch.distributed.checkpoint, by megatron or by torch. It is checked first, then read one tensor at a time.

torch's reader reads it, in one process without a process group. Megatron is not needed. Megatron stores the layers of a model
stacked: one tensor with a leading layer dimension for each kind of weight. Here each layer is a separate piece.
"""

import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confined
import torch
from lib.faults import Refused
from lib.progress import ProgressPrinter
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, LoadPlan, ReadItem
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType

_STACKED = re.compile(r"(decoder\.layers\.)(?!\d)(.+)")
# Keys under which programs save the model, in torch's own checkpoints.
_MODEL = ("model", "model_state_dict", "state_dict", "module")
# Keys in megatron's checkpoints that do not belong to the model.
_NOT_MODEL = re.compile(r"optimizer|chained_\d|opt_param_scheduler|rng|rerun|iteration|args")
_BLOCK = 1 << 22


@dataclass(frozen=True)
class TensorPiece:
    """A tensor of the model: a stored tensor, or the slice `layer` of a stacked one."""

    name: str
    stored: str
    layer: int | None
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """The size of the tensor."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class CheckpointSource:
    """A complete checkpoint. kind: megatron, gpt (launchers/lib/model.py), or other. step: None where it is not stored.

    model: the content of model.json; empty where there is none.
    """

    def __init__(self, folder: Path, progress: ProgressPrinter) -> None:
        self.folder = resolve(folder)
        marker = read_json(self.folder / "complete.json")
        self.model = read_json(self.folder / "model.json")
        is_megatron = _is_megatron(self.folder)
        metadata = _metadata(self.folder)
        _check_files(self.folder, metadata.storage_data.values())
        if marker:
            check_sums(self.folder, marker["files"], progress)
        self._tensors: dict[str, TensorStorageMetadata] = {}
        self.dropped: list[str] = []
        names = dict(_model_keys(metadata, is_megatron))
        self.kind = family(set(names.values()))
        for key, name in names.items():
            one = metadata.state_dict_metadata[key]
            if isinstance(one, TensorStorageMetadata):
                self._tensors[key] = _check_covered(self.folder, key, one, metadata.storage_data)
            elif "_extra_state" not in name:  # Transformer Engine's fp8 scales, of no use elsewhere
                self.dropped.append(name)
        self.pieces = [
            piece for key, one in self._tensors.items() for piece in _split_layers(key, names[key], one, self.kind)
        ]
        if not self.pieces:
            raise Refused(f"{self.folder}: it holds no tensor of a model")
        self.common = _common(self.folder) if is_megatron else {}
        self.step: int | None = marker["step"] if marker else self.common.get("iteration")
        self._reader = FileSystemReader(self.folder)
        self._reader.set_up_storage_reader(metadata, is_coordinator=True)

    @property
    def bytes(self) -> int:
        """The size of all tensors of the model."""
        return sum(piece.bytes for piece in self.pieces)

    def read(self, piece: TensorPiece) -> torch.Tensor:
        """One tensor. Takes memory for the tensor and for one stored chunk of it."""
        whole = self._tensors[piece.stored]
        first = [piece.layer or 0] + [0] * (len(whole.size) - 1) if piece.layer is not None else [0] * len(whole.size)
        last = [start + (1 if piece.layer is not None and d == 0 else whole.size[d]) for d, start in enumerate(first)]
        items = []
        for chunk in whole.chunks:
            low = [max(a, b) for a, b in zip(first, chunk.offsets, strict=True)]
            high = [min(a, b + n) for a, b, n in zip(last, chunk.offsets, chunk.sizes, strict=True)]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            items.append(
                ReadItem(
                    type=LoadItemType.TENSOR,
                    dest_index=MetadataIndex(piece.stored),
                    dest_offsets=_difference(low, first),
                    storage_index=MetadataIndex(piece.stored, chunk.offsets),
                    storage_offsets=_difference(low, chunk.offsets),
                    lengths=_difference(high, low),
                )
            )
        into = torch.empty([b - a for a, b in zip(first, last, strict=True)], dtype=piece.dtype)
        try:
            self._reader.read_data(LoadPlan(items), _TensorPlanner(into)).wait()
        except (OSError, RuntimeError, ValueError, EOFError, AssertionError) as error:
            raise Refused(f"{self.folder}: {piece.stored} cannot be read: {error}") from None
        return into.reshape(piece.shape)


class _TensorPlanner(DefaultLoadPlanner):
    """Gives the reader the place of each chunk in one tensor."""

    def __init__(self, into: torch.Tensor) -> None:
        super().__init__()
        self._into = into

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        return self._into


def _difference(left: Iterable[int], right: Iterable[int]) -> torch.Size:
    return torch.Size([a - b for a, b in zip(left, right, strict=True)])


def resolve(folder: Path) -> Path:
    """The checkpoint itself, where `folder` may also be the folder that checkpoints are saved in."""
    if folder.name.startswith(".tmp-"):
        raise Refused(f"{folder}: incomplete: its save did not end")
    latest, iteration = folder / "latest", folder / "latest_checkpointed_iteration.txt"
    if latest.is_file():
        return folder / latest.read_text(encoding="utf-8").strip()
    if iteration.is_file():  # Megatron-LM's
        number = iteration.read_text(encoding="utf-8").strip()
        return folder / (f"iter_{int(number):07d}" if number.isdigit() else number)
    return folder


def read_json(path: Path) -> dict[str, Any]:
    """complete.json or model.json of the kit's own checkpoints; empty where there is none."""
    if not path.is_file():
        return {}
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Refused(f"{path}: damaged: {error}") from None
    return content


def _is_megatron(folder: Path) -> bool:
    """Whether it is a checkpoint of megatron, which adds common.pt and, written last, metadata.json to torch's files."""
    sign, common = folder / "metadata.json", folder / "common.pt"
    if sign.is_file() != common.is_file():
        missing = common.name if sign.is_file() else sign.name
        raise Refused(f"{folder}: incomplete: {missing} is missing")
    if not sign.is_file():
        return False
    try:
        backend = json.loads(sign.read_text(encoding="utf-8"))["sharded_backend"]
    except (ValueError, KeyError) as error:
        raise Refused(f"{sign}: damaged: {error}") from None
    if backend != "torch_dist":
        raise Refused(f"{folder}: its format is {backend!r}; only megatron's 'torch_dist' can be read")
    return True


def _metadata(folder: Path) -> Any:
    path = folder / ".metadata"
    if not folder.is_dir():
        raise Refused(f"{folder}: no such folder")
    if not path.is_file():
        if any(folder.glob("*.distcp")):
            raise Refused(f"{folder}: incomplete: .metadata is missing")
        hint = "the folder of one checkpoint, or the one that they are saved in"
        if (folder / "deepspeed").is_dir():
            hint = "DeepSpeed converts its own checkpoints: zero_to_fp32.py"
        raise Refused(f"{folder}: not a checkpoint of torch.distributed.checkpoint or megatron", hint=hint)
    try:
        metadata = confined.metadata(path)
        if not metadata.state_dict_metadata or metadata.storage_data is None:
            raise ValueError("it names no tensors")
    except Exception as error:  # noqa: BLE001 - a damaged pickle can raise anything
        raise Refused(f"{path}: damaged: {error}") from None
    return metadata


def _check_files(folder: Path, stored: Iterable[Any]) -> None:
    """Refused where a shard file is missing, or shorter than the metadata says."""
    ends: dict[str, int] = {}
    for one in stored:
        ends[one.relative_path] = max(ends.get(one.relative_path, 0), one.offset + one.length)
    for name, end in sorted(ends.items()):
        path = folder / name
        if not path.is_file():
            raise Refused(f"{folder}: incomplete: {name} is missing")
        if path.stat().st_size < end:
            raise Refused(f"{folder}: incomplete: {name} has {path.stat().st_size} bytes of {end}")


def check_sums(folder: Path, files: dict[str, list[int]], progress: ProgressPrinter) -> None:
    """Refused unless every file has the size and checksum that complete.json lists."""
    with progress.counting("checking the checkpoint", sum(size for size, _ in files.values())) as advance:
        for name, (size, want) in sorted(files.items()):
            path = folder / name
            if not path.is_file():
                raise Refused(f"{folder}: incomplete: {name} is missing")
            if path.stat().st_size != size:
                raise Refused(f"{folder}: incomplete: {name} has {path.stat().st_size} bytes of {size}")
            crc = 0
            with path.open("rb") as file:
                while block := file.read(_BLOCK):
                    crc = zlib.crc32(block, crc)
                    advance(len(block))
            if crc != want:
                raise Refused(f"{folder}: damaged: {name} differs from what was written")


def _model_keys(metadata: Any, is_megatron: bool) -> Iterator[tuple[str, str]]:
    """The stored key of each tensor that belongs to the model, and its name in the model."""
    keys = list(metadata.state_dict_metadata)
    if is_megatron:
        yield from ((key, key) for key in keys if not _NOT_MODEL.match(key))
        return
    # The path of a key in the saved state, such as ("model", "blocks.0.qkv.weight"), where a program saved a nested state.
    paths = {key: [str(part) for part in (metadata.planner_data or {}).get(key, (key,))] for key in keys}
    tops = {path[0] for path in paths.values() if len(path) > 1}
    top = next((name for name in _MODEL if name in tops), None)
    for key, path in paths.items():
        if top is not None and path[0] == top:
            yield key, ".".join(path[1:])
        elif top is None and not path[0].startswith("optim"):
            yield key, ".".join(path)


def family(names: set[str]) -> str:
    """The model's family, by the names of its tensors."""
    if "embedding.word_embeddings.weight" in names:
        return "megatron"
    return "gpt" if {"embedding.weight", "blocks.0.qkv.weight", "blocks.0.gate_up.weight"} <= names else "other"


def _check_covered(
    folder: Path, key: str, one: TensorStorageMetadata, stored: dict[MetadataIndex, Any]
) -> TensorStorageMetadata:
    """Return `one`. Refused where a chunk of it is not stored, or the chunks do not make up the whole tensor."""
    for chunk in one.chunks:
        if chunk.sizes.numel() and MetadataIndex(key, chunk.offsets) not in stored:
            raise Refused(f"{folder}: incomplete: a part of {key} is stored nowhere")
    if sum(chunk.sizes.numel() for chunk in one.chunks) < one.size.numel():
        raise Refused(f"{folder}: incomplete: parts of {key} are missing")
    return one


def _split_layers(key: str, name: str, one: TensorStorageMetadata, kind: str) -> Iterator[TensorPiece]:
    stacked = _STACKED.fullmatch(name) if kind == "megatron" else None
    if stacked is None:
        yield TensorPiece(name, key, None, tuple(one.size), one.properties.dtype)
        return
    for layer in range(one.size[0]):
        yield TensorPiece(f"{stacked[1]}{layer}.{stacked[2]}", key, layer, tuple(one.size[1:]), one.properties.dtype)


def _common(folder: Path) -> dict[str, Any]:
    try:
        content = confined.common(folder / "common.pt")
    except Exception as error:  # noqa: BLE001 - a damaged pickle can raise anything
        raise Refused(f"{folder / 'common.pt'}: damaged: {error}") from None
    return content if isinstance(content, dict) else {}
