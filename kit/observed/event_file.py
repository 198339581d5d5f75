"""Reads the scalars of a TensorBoard event file: TFRecords of Event messages.

Sources: tensorflow/core/lib/io/record_writer.h for a record (length, its CRC, data, CRC), tensorflow/core/util/event.proto and
framework/summary.proto for the numbers of the fields. Images, histograms and graphs are skipped without being read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO

from kit.files import untrusted_files
from kit.observed import protobuf
from kit.observed.figures import Figures, Points

# A record of scalars has tens of bytes.
_MOST_RECORD = 1 << 16
# Of a larger file, its beginning and its end are read.
_HALF = 2 << 20
_LENGTH = struct.Struct("<QI")
_FLOAT, _DOUBLE = 1, 2


def read_file(path: Path, *, name: str, since: float) -> Figures | None:
    """The scalars of a file; None if it has none. since: events before this time, in seconds, are of another run."""
    points = Points()
    try:
        with untrusted_files.open_regular(path) as source:
            seen = os.fstat(source.fileno())
            end = seen.st_size
            spans = [(0, end)] if end <= 2 * _HALF else [(0, _HALF), (end - _HALF, end)]
            for start, stop in spans:
                for record in _records(source, start, stop):
                    _add(record, points, since)
    except OSError:
        return None
    found = points.take()
    return Figures(source=f"TensorBoard, {name}", path=path, time=seen.st_mtime, points=found) if found else None


def _records(source: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    """The small records between two offsets. A file is being written, so its last record may be cut."""
    at = start if start == 0 else _next_record(source, start, stop)
    while at + _LENGTH.size <= stop:
        source.seek(at)
        length = _length(source.read(_LENGTH.size))
        if length is None:
            return
        if length <= _MOST_RECORD:
            yield source.read(length)
        at += _LENGTH.size + length + 4


def _next_record(source: BinaryIO, start: int, stop: int) -> int:
    """The offset of the first record after `start`: the length of each has a checksum."""
    source.seek(start)
    window = source.read(min(_MOST_RECORD, stop - start))
    return next((start + at for at in range(len(window)) if _length(window[at : at + _LENGTH.size]) is not None), stop)


def _length(head: bytes) -> int | None:
    if len(head) < _LENGTH.size:
        return None
    length, check = _LENGTH.unpack(head)
    crc = _crc32c(head[:8])
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return int(length) if masked == check and length < 1 << 40 else None


@cache
def _table() -> tuple[int, ...]:
    """CRC-32C (Castagnoli), byte by byte: RFC 3720, appendix B.4."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


def _crc32c(data: bytes) -> int:
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _add(record: bytes, points: Points, since: float) -> None:
    """Add the scalars of an Event: wall_time 1, step 2, summary 5."""
    step, at, values = 0, 0.0, dict[str, float]()
    try:
        for number, kind, value in protobuf.fields(record):
            if number == 1 and (time := protobuf.number(kind, value)) is not None:
                at = time
            elif number == 2 and isinstance(value, int):
                step = protobuf.signed(value)
            elif number == 5 and isinstance(value, bytes):
                values.update(
                    _scalar(one) for field, _, one in protobuf.fields(value) if field == 1 and _is_scalar(one)
                )
    except (ValueError, struct.error):
        return
    if values and at >= since:
        points.add(step, values)


def _is_scalar(value: int | bytes) -> bool:
    return isinstance(value, bytes) and _scalar(value)[0] != ""


def _scalar(value: int | bytes) -> tuple[str, float]:
    """Tag and number of a Summary.Value: tag 1, simple_value 2, tensor 8; an empty tag if it is no scalar."""
    tag, scalar = "", None
    for number, kind, field in protobuf.fields(value if isinstance(value, bytes) else b""):
        if number == 1 and isinstance(field, bytes):
            tag = field.decode(errors="replace")
        elif number == 2:
            scalar = protobuf.number(kind, field)
        elif number == 8 and isinstance(field, bytes):
            scalar = _tensor(field)
    return (tag, scalar) if scalar is not None else ("", 0.0)


def _tensor(message: bytes) -> float | None:
    """The number of a TensorProto with one element: dtype 1, tensor_content 4, float_val 5, double_val 6."""
    dtype, content = 0, b""
    for number, _, field in protobuf.fields(message):
        if number == 1 and isinstance(field, int):
            dtype = field
        elif number in {4, 5, 6} and isinstance(field, bytes):
            content = field
    if dtype == _FLOAT and len(content) == 4:
        return protobuf.number(protobuf.FIXED32, content)
    return protobuf.number(protobuf.FIXED64, content) if dtype == _DOUBLE and len(content) == 8 else None
