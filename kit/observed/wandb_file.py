"""Reads the history of a W&B run from its transaction log, run-ID.wandb, which an offline and an online run both write.

Sources: the log format of LevelDB (doc/log_format.md) for blocks and records, behind a header of seven bytes; wandb_internal.proto
for the numbers of the fields. Checksums are not compared: a wrong record has no message in it.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from kit.files import untrusted_files
from kit.observed import protobuf
from kit.observed.figures import Figures, Points

_MAGIC = b":W&B"
_BLOCK = 32 << 10
_HEAD = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MOST_RECORD = 1 << 20
_HALF_BLOCKS = 128
# Keys of W&B's own, and numbers that say nothing about the training.
_OWN = frozenset({"_step", "_runtime", "_timestamp", "_wandb"})
_STEPS = ("trainer/global_step", "train/global_step", "global_step")


def read_file(path: Path, *, name: str, since: float) -> Figures | None:
    """The numbers of a run's history; None if it has none. since: points before this time, in seconds, are of another run."""
    points = Points()
    try:
        with untrusted_files.open_regular(path) as source:
            seen = os.fstat(source.fileno())
            if source.read(len(_MAGIC)) != _MAGIC:
                return None
            for record in _records(source, seen.st_size):
                _add(record, points, since)
    except OSError:
        return None
    found = points.take()
    return Figures(source=f"W&B, {name}", path=path, time=seen.st_mtime, points=found) if found else None


def _records(source: BinaryIO, size: int) -> Iterator[bytes]:
    """The records of a file's first and last blocks. A record that lies in blocks that are not read is left out."""
    blocks = -(-size // _BLOCK)
    last = range(max(0, blocks - _HALF_BLOCKS), blocks)
    parts = b""
    for block in [*range(min(last.start, _HALF_BLOCKS)), *last]:
        source.seek(block * _BLOCK)
        data = source.read(_BLOCK)
        at = 7 if block == 0 else 0
        while at + _HEAD.size <= len(data):
            _, length, kind = _HEAD.unpack_from(data, at)
            part = data[at + _HEAD.size : at + _HEAD.size + length]
            at += _HEAD.size + length
            if kind not in {_FULL, _FIRST, _MIDDLE, _LAST} or len(part) < length:
                break
            parts = part if kind in {_FULL, _FIRST} else parts + part
            if kind in {_FULL, _LAST}:
                yield parts
                parts = b""
            elif len(parts) > _MOST_RECORD:
                parts = b""


def _add(record: bytes, points: Points, since: float) -> None:
    """Add the numbers of a Record's history 2: items 1 with key 1 or nested_key 2, and value_json 16; step 2 with num 1."""
    step, values = 0, dict[str, float]()
    try:
        history = next((value for number, _, value in protobuf.fields(record) if number == 2), b"")
        for number, _, value in protobuf.fields(history if isinstance(history, bytes) else b""):
            if number == 1 and isinstance(value, bytes):
                values.update(_item(value))
            elif number == 2 and isinstance(value, bytes):
                step = next((one for field, _, one in protobuf.fields(value) if field == 1 and isinstance(one, int)), 0)
        step = int(next((values[name] for name in (*_STEPS, "_step") if name in values), step))
    except (ValueError, OverflowError, RecursionError):
        return
    if values.get("_timestamp", since) < since:
        return
    kept = {name: value for name, value in values.items() if name not in {*_OWN, *_STEPS}}
    if kept:
        points.add(step, kept)


def _item(message: bytes) -> dict[str, float]:
    """Key and number of a HistoryItem; empty if its value is no number."""
    key, value = list[str](), b""
    for number, _, field in protobuf.fields(message):
        if isinstance(field, bytes) and number in {1, 2}:
            key.append(field.decode(errors="replace"))
        elif isinstance(field, bytes) and number == 16:
            value = field
    if not key or len(value) > 64:
        return {}
    found = json.loads(value)
    if isinstance(found, bool) or not isinstance(found, int | float) or abs(found) > 1e300:
        return {}
    return {".".join(key): float(found)}
