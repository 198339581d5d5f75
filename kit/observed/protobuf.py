"""Reads the wire format of protocol buffers, as far as the files of trackers need it.

Source: https://protobuf.dev/programming-guides/encoding/. Groups, which no such file has, are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_VARINT_BYTES = 10


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """The fields of a message: number, wire type, value. ValueError where the bytes are not a message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, at = varint(data, at)
        elif kind in {FIXED64, FIXED32}:
            size = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if size > len(data) - at:
            raise ValueError("a field is cut")
        yield number, kind, data[at : at + size]
        at += size


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and the offset after it."""
    value = 0
    for place in range(_VARINT_BYTES):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at
    raise ValueError("a number is cut")


def signed(value: int) -> int:
    """An int64 from its varint."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def number(kind: int, value: int | bytes) -> float | None:
    """A float or double from its field; None for another type."""
    if isinstance(value, int) or kind not in {FIXED32, FIXED64}:
        return None
    return float(struct.unpack("<f" if kind == FIXED32 else "<d", value)[0])
