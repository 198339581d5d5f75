"""Lays a nested state of tensors, arrays and plain values out in one piece of memory, and reads it again.

    count, sizes    of the blobs: 8 bytes each
    blobs           the first is the state pickled without its large buffers, the others are those buffers, aligned

A tensor is copied once, from its device into the piece. A DTensor is stored as this rank's shard. Only tensors need torch.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any

_NUMBER = struct.Struct("<Q")
_ALIGNED = 64


class StateLayout:
    """A state with its size. `write` copies it into memory of that size."""

    def __init__(self, state: object) -> None:
        text = io.BytesIO()
        pickler = _Pickler(text)
        pickler.dump(state)
        self._blobs: list[Any] = [memoryview(text.getvalue()), *pickler.blobs]
        self._sizes = [_size(blob) for blob in self._blobs]
        self._places = [*_places(self._sizes)]
        self.size = self._places[-1]

    def write(self, memory: memoryview) -> None:
        """Copy the state into `memory`, which nothing else may use meanwhile."""
        for number, value in enumerate((len(self._sizes), *self._sizes)):
            _NUMBER.pack_into(memory, number * _NUMBER.size, value)
        for blob, place, size in zip(self._blobs, self._places, self._sizes):
            if size and isinstance(blob, memoryview):
                memory[place : place + size] = blob
            elif size:
                _tensor(memory, place, blob.dtype, blob.shape).copy_(blob)


def read_state(memory: memoryview) -> Any:
    """The state that was written, as copies: nothing refers to `memory` afterwards."""
    (count,) = _NUMBER.unpack_from(memory)
    sizes = [_NUMBER.unpack_from(memory, number * _NUMBER.size)[0] for number in range(1, count + 1)]
    places = [*_places(sizes)]
    (at, length), *others = zip(places, sizes)
    return _Unpickler(io.BytesIO(memory[at : at + length]), memory, others).load()


class _Pickler(pickle.Pickler):
    """Keeps tensors, and the buffers of arrays, apart from the pickled text."""

    def __init__(self, text: io.BytesIO) -> None:
        super().__init__(text, protocol=5, buffer_callback=self._keep)
        # Tensors of torch, and memory of arrays.
        self.blobs: list[Any] = []
        self._known: dict[int, tuple[int, object]] = {}
        self._torch = sys.modules.get("torch")

    def persistent_id(self, value: Any) -> tuple[str, int, Any, tuple[int, ...]] | None:
        """A tensor's place, type and shape; None for anything else, which is pickled."""
        if self._torch is None or not isinstance(value, self._torch.Tensor):
            return None
        if id(value) not in self._known:
            local = value.to_local() if hasattr(value, "to_local") else value
            self.blobs.append(local.detach())
            # The value itself stays alive with its number, so that no other object gets its id.
            self._known[id(value)] = (len(self.blobs) - 1, value)
        number = self._known[id(value)][0]
        return "tensor", number, self.blobs[number].dtype, tuple(self.blobs[number].shape)

    def _keep(self, buffer: pickle.PickleBuffer) -> None:
        # pickle reads the buffers again in this order: it wants no number.
        self.blobs.append(buffer.raw())


class _Unpickler(pickle.Unpickler):
    def __init__(self, text: io.BytesIO, memory: memoryview, pieces: list[tuple[int, int]]) -> None:
        # pickle asks for the next buffer each time; the places of tensors are skipped.
        self._memory, self._pieces = memory, pieces
        self._tensors: dict[int, Any] = {}
        super().__init__(text, buffers=self._buffers())

    def persistent_load(self, found: tuple[str, int, Any, tuple[int, ...]]) -> Any:
        """A new tensor with the stored values. One that was in the state twice is the same object again."""
        _, number, dtype, shape = found
        if number not in self._tensors:
            import torch  # noqa: PLC0415 - a state without tensors needs none

            place, size = self._pieces[number]
            self._tensors[number] = (
                _tensor(self._memory, place, dtype, shape).clone() if size else torch.empty(shape, dtype=dtype)
            )
        return self._tensors[number]

    def _buffers(self) -> Iterator[bytearray]:
        for number, (place, size) in enumerate(self._pieces):
            if number not in self._tensors:
                yield bytearray(self._memory[place : place + size])


def _tensor(memory: memoryview, offset: int, dtype: Any, shape: Sequence[int]) -> Any:
    """A tensor over bytes of `memory`."""
    import warnings  # noqa: PLC0415

    import torch  # noqa: PLC0415

    count = 1
    for length in shape:
        count *= length
    with warnings.catch_warnings():
        # torch warns about memory that is read-only, and nobody writes to this tensor.
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)


def _size(blob: Any) -> int:
    return blob.nbytes if isinstance(blob, memoryview) else int(blob.numel() * blob.element_size())


def _places(sizes: Sequence[int]) -> Iterator[int]:
    """Where each blob begins, and the end of the last."""
    at = _NUMBER.size * (len(sizes) + 1)
    for size in sizes:
        at = -(-at // _ALIGNED) * _ALIGNED
        yield at
        at += size
    yield at
