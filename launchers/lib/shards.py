"""Tokens on disk in Megatron's format: NAME.bin holds the tokens of all documents, NAME.idx the position of each document.

The .idx follows megatron/core/datasets/indexed_dataset.py of megatron-core 0.16: magic, version (uint64), type code (uint8), number
of sequences and number of document bounds (uint64 each). Then follow the length of each sequence (int32), its first byte (int64),
and the first sequence of each document, closed by the number of sequences (int64). Here a document is one sequence.
"""

import contextlib
import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .faults import Refused
from .vocabulary import Tokens

_MAGIC, _VERSION = b"MMIDIDX\x00\x00", 1
_HEADER = struct.Struct("<9sQBQQ")
_TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """The content of a .idx. lengths: tokens of each sequence, int32. bounds: first sequence of each document, then the total."""

    dtype: np.dtype[Any]
    lengths: Tokens
    bounds: Tokens

    @property
    def tokens(self) -> int:
        """The tokens of all sequences."""
        return int(self.lengths.sum(dtype=np.int64))


class Writer:
    """Writes NAME.bin and NAME.idx. Both are complete and synced to disk when the block ends without an error."""

    def __init__(self, prefix: Path, dtype: np.dtype[Any]) -> None:
        self._prefix, self._dtype = prefix, dtype
        self._lengths: list[Tokens] = []
        self._digest = hashlib.sha256()
        self.tokens = 0

    def __enter__(self) -> "Writer":
        self._file = self._prefix.with_name(f"{self._prefix.name}.bin").open("wb")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._file:
            if kind is None:
                _to_disk(self._file)
        if kind is None:
            self._write_index()

    def add(self, tokens: Tokens, lengths: Tokens) -> None:
        """Add documents whose tokens follow each other in `tokens`. lengths: the number of tokens of each document."""
        content = np.ascontiguousarray(tokens, self._dtype).data
        self._file.write(content)
        self._digest.update(content)
        self._lengths.append(lengths)
        self.tokens += len(tokens)

    @property
    def documents(self) -> int:
        """The number of documents so far."""
        return sum(map(len, self._lengths))

    @property
    def sha256(self) -> str:
        """SHA-256 of the .bin and of the documents' lengths."""
        whole = self._digest.copy()
        for lengths in self._lengths:
            whole.update(np.ascontiguousarray(lengths, np.int32).data)
        return whole.hexdigest()

    def _write_index(self) -> None:
        lengths = np.concatenate([np.zeros(0, np.int32), *self._lengths]).astype(np.int32)
        firsts = np.zeros(len(lengths), np.int64)
        np.cumsum(lengths[:-1], out=firsts[1:], dtype=np.int64)
        number = next(number for number, kind in _TYPES.items() if self._dtype == kind)
        with self._prefix.with_name(f"{self._prefix.name}.idx").open("wb") as file:
            file.write(_HEADER.pack(_MAGIC, _VERSION, number, len(lengths), len(lengths) + 1))
            file.write(lengths.data)
            file.write((firsts * self._dtype.itemsize).data)
            file.write(np.arange(len(lengths) + 1, dtype=np.int64).data)
            _to_disk(file)


def index(prefix: Path) -> ShardIndex:
    """Read NAME.idx and check it against NAME.bin. Refused where either is missing, incomplete, or of another format."""
    path, tokens = prefix.with_name(f"{prefix.name}.idx"), prefix.with_name(f"{prefix.name}.bin")
    try:
        size, held = path.stat().st_size, tokens.stat().st_size
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
    except OSError as error:
        raise Refused(f"{error.filename}: {error.strerror}") from None
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise Refused(f"{path}: not an index of Megatron's (it does not begin with MMIDIDX)")
    _, version, number, sequences, bounds = _HEADER.unpack(head)
    if version != _VERSION or number not in _TYPES:
        raise Refused(f"{path}: version {version} with token type {number}: version 1 with an integer type is read")
    if size < _HEADER.size + 12 * sequences + 8 * bounds:
        raise Refused(
            f"{path}: {size} bytes are too few for {sequences} sequences in {bounds - 1} documents: it was cut off"
        )
    lengths: Tokens = np.memmap(path, np.int32, "r", _HEADER.size, (sequences,)) if sequences else np.zeros(0, np.int32)
    first = _HEADER.size + 12 * sequences
    made = ShardIndex(
        dtype=np.dtype(_TYPES[number]), lengths=lengths, bounds=np.memmap(path, np.int64, "r", first, (bounds,))
    )
    if held != made.tokens * made.dtype.itemsize:
        raise Refused(
            f"{tokens}: it has {held} bytes, and {path.name} counts {made.tokens * made.dtype.itemsize}: it was cut off"
        )
    return made


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Any]:
    """Write a text file under a temporary name. It gets its own name once it is synced to disk."""
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        yield file
        _to_disk(file)
    new.replace(path)


def _to_disk(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
