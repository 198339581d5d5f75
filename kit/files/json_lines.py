"""JSON lines that another user's program may have written: metrics and events. Only values that a reader can use come through."""

from __future__ import annotations

import json
from typing import Any

Record = dict[str, Any]

# Fields that have one type in all records of the kit. A value of another type is dropped.
_WHOLE = frozenset({"step", "restart", "rank", "replica", "outer_step", "quorum_id"})
_TEXT = frozenset({"event", "kind", "time"})
# A larger integer is no float, and no column of a table has it.
_LIMIT = 1 << 63
# Seconds in 30,000 years.
_MOST = 1e12


def parse_records(text: bytes) -> list[Record]:
    """The object in each line. Lines that are no JSON objects are skipped: a kill or a full disk left them incomplete.

    Dropped are fields of a wrong type, and integers outside 64 bits. Half of a surrogate pair, which no UTF-8 file can hold,
    becomes "?".
    """
    return [_usable(one) for one in _parsed(text) if isinstance(one, dict)]


def is_usable_number(value: object) -> bool:
    """Whether a value, a number or its text, can be a count or a time in seconds; sums of such numbers are finite."""
    try:
        return abs(float(str(value))) < _MOST
    except ValueError:
        return False


def _parsed(text: bytes) -> list[object]:
    # All lines at once are three times as fast; line by line only where one is incomplete.
    try:
        every: list[object] = json.loads(b"[" + text.strip().replace(b"\n", b",") + b"]")
    except (ValueError, RecursionError):
        every = []
        for line in text.decode(errors="replace").splitlines():
            try:
                every.append(json.loads(line))
            except (ValueError, RecursionError):
                continue
    return every if b"\\ud" not in text.lower() else [_without_surrogates(one) for one in every]


def _without_surrogates(one: object) -> object:
    return json.loads(json.dumps(one, ensure_ascii=False).encode(errors="replace"))


def _usable(record: Record) -> Record:
    wrong = [name for name, value in record.items() if _is_wrong(name, value)]
    return {name: value for name, value in record.items() if name not in wrong} if wrong else record


def _is_wrong(name: str, value: object) -> bool:
    if name in _TEXT:
        return type(value) is not str
    if type(value) is int:
        return not -_LIMIT <= value < _LIMIT
    # The batch script writes some whole numbers as text.
    return name in _WHOLE and type(value) is not str
