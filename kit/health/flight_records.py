"""Dumps of torch's flight recorder: which rank did not come to the collective that the others wait in.

At a time-out of NCCL torch writes one file for each rank, a pickle of plain values. A pickle may run anything, and who wrote a file
in a run folder is not known, so it is never unpickled: `plain_value` knows the opcodes of such values alone, and refuses any other.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kit.files import untrusted_files
from kit.health import collectives
from kit.health.collectives import Collective, Odd
from kit.schema.run_paths import RunPaths

# With 2,000 entries, a dump has a megabyte; with the stack of each call, some more.
_MOST_BYTES, _MOST_BYTES_READ = 64 << 20, 1 << 30
# Opcodes of one dump: with the stacks of 2,000 calls, half a million. An empty list takes one byte there, and 56 in memory.
_MOST_OPCODES = 2_000_000
# Tensors of a call, and dimensions of a tensor, that are compared.
_MOST_SHOWN = 16
# Of each process group, the last calls are compared.
_LAST = 64
_NAMED = re.compile(r"collectives-(\d{1,9})")
_START = re.compile(r"(?P<role>.+)-(?P<start>\d+)")
_FAILURES = "failures-"


@dataclass(frozen=True, kw_only=True)
class Dumps:
    """The dumps of one start of a role. calls: by rank, the last of each group. files: by rank, relative to the run folder."""

    calls: dict[int, list[Collective]]
    files: dict[int, str]

    def odd(self) -> tuple[Odd, list[int]] | None:
        """How some ranks differ from the others, and their numbers; None if none does."""
        ranks = sorted(self.calls)
        found = collectives.odd([self.calls[rank] for rank in ranks])
        return (found, [ranks[place] for place in found.places]) if found else None


def read_dumps(run_dir: Path, role: str) -> Dumps:
    """The dumps of the last start of the ranks. role: empty for the only role of a plain job. Damaged files are left out."""
    state = RunPaths(run_dir).state
    attempts = [
        int(number) for path in state.glob(f"{_FAILURES}*") if (number := path.name[len(_FAILURES) :]).isdecimal()
    ]
    starts: dict[int, Path] = {}
    for path in state.glob(f"{_FAILURES}{max(attempts)}/*") if attempts else ():
        named = _START.fullmatch(path.name)
        if named and role in {"", named["role"]} and path.is_dir():
            starts[int(named["start"])] = path
    calls, files, left = dict[int, list[Collective]](), dict[int, str](), _MOST_BYTES_READ
    for path in sorted(starts[max(starts)].glob("collectives-*")) if starts else ():
        if (match := _NAMED.fullmatch(path.name)) is None:
            continue
        try:
            content = untrusted_files.read_bytes(path, most=min(left, _MOST_BYTES))
            left -= len(content)
            own = calls_of(plain_value(content))
        except (OSError, ValueError):
            continue
        calls[int(match[1])], files[int(match[1])] = own, path.relative_to(run_dir).as_posix()
    return Dumps(calls=calls, files=files)


def calls_of(dump: object) -> list[Collective]:
    """The last calls of each process group in a dump, sends and receives left out. ValueError if it is no dump."""
    entries = dump.get("entries") if isinstance(dump, dict) else None
    if not isinstance(entries, list):
        raise ValueError("no entries")
    groups: dict[str, list[Collective]] = {}
    for entry in entries:
        if isinstance(entry, dict) and not entry.get("is_p2p") and (one := _call(entry)):
            groups.setdefault(one.group, []).append(one)
    return [one for calls in groups.values() for one in calls[-_LAST:]]


def _call(entry: dict[object, object]) -> Collective | None:
    group, number, name = (entry.get(key) for key in ("process_group", "collective_seq_id", "profiling_name"))
    kinds = entry.get("input_dtypes")
    if not isinstance(group, list | tuple) or not group or type(number) is not int or not isinstance(name, str):
        return None
    return Collective(
        group=_shown(group[0])[:80],
        number=number,
        name=name.rpartition(":")[2][:80],
        kind=",".join(map(_shown, kinds[:_MOST_SHOWN]))[:40] if isinstance(kinds, list) and kinds else "-",
        sizes=json.dumps(_sizes(entry.get("input_sizes")), separators=(",", ":"))[:80],
        waits=not entry.get("retired"),
        line=0,
    )


def _shown(value: object) -> str:
    """A text or a number. Lists may contain themselves."""
    return str(value) if isinstance(value, str | int) else "?"


def _sizes(value: object) -> object:
    """The sizes of tensors: a list of lists of numbers, the first of each."""
    if not isinstance(value, list):
        return None
    lists = [one[:_MOST_SHOWN] if isinstance(one, list) else [] for one in value[:_MOST_SHOWN]]
    return [[size for size in one if isinstance(size, int)] for one in lists]


def plain_value(content: bytes) -> object:
    """The value in a pickle of dicts, lists, tuples, texts, numbers and None. ValueError for anything else, or a damaged one.

    The opcodes are those of protocol 2, in Python's module pickletools.
    """
    try:
        return _PlainValue(content).read_value()
    except (IndexError, KeyError, TypeError, struct.error, RecursionError) as error:
        raise ValueError(f"not a pickle of plain values: {error}") from None


class _PlainValue:
    """Reads one pickle. A mark on the stack is the list itself of the values before it."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0
        self._stack: list[object] = []
        self._marks: list[list[object]] = []
        self._memo: dict[int, object] = {}

    def read_value(self) -> object:
        left = _MOST_OPCODES
        while (code := self._take(1)) != b".":
            left -= 1
            if code not in _OPCODES or left < 0:
                raise ValueError(f"opcode {code!r} at byte {self._at - 1}")
            _OPCODES[code](self)
        if len(self._stack) != 1 or self._marks:
            raise ValueError("not one value")
        return self._stack[0]

    def _take(self, size: int) -> bytes:
        found = self._content[self._at : self._at + size]
        if size < 0 or len(found) < size:
            raise ValueError("cut off")
        self._at += size
        return found

    def _number(self, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def push(self, value: object) -> None:
        self._stack.append(value)

    def push_number(self, form: str) -> None:
        self.push(self._number(form))

    def push_long(self) -> None:
        self.push(int.from_bytes(self._take(self._number("<B")), "little", signed=True))

    def push_float(self) -> None:
        self.push(struct.unpack(">d", self._take(8))[0])

    def push_text(self, form: str) -> None:
        self.push(self._take(self._number(form)).decode(errors="replace"))

    def keep(self, form: str) -> None:
        self._memo[self._number(form)] = self._stack[-1]

    def fetch(self, form: str) -> None:
        self.push(self._memo[self._number(form)])

    def protocol(self) -> None:
        if self._number("<B") > 5:
            raise ValueError("protocol")

    def mark(self) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[object]:
        found, self._stack = self._stack, self._marks.pop()
        return found

    def append(self) -> None:
        value = self._stack.pop()
        self._list().append(value)

    def extend(self) -> None:
        values = self._since_mark()
        self._list().extend(values)

    def _list(self) -> list[object]:
        if not isinstance(found := self._stack[-1], list):
            raise ValueError("not a list")
        return found

    def set_items(self) -> None:
        self._set(self._since_mark())

    def set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def _set(self, values: list[object]) -> None:
        if not isinstance(found := self._stack[-1], dict) or len(values) % 2:
            raise ValueError("not a dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str | int):
                raise ValueError("a key that is no text")
            found[key] = value

    def push_tuple(self, size: int) -> None:
        if size > len(self._stack):
            raise ValueError("cut off")
        values = tuple(self._stack[len(self._stack) - size :])
        del self._stack[len(self._stack) - size :]
        self.push(values)

    def push_marked_tuple(self) -> None:
        values = self._since_mark()
        self.push(tuple(values))


_OPCODES: dict[bytes, Callable[[_PlainValue], None]] = {
    b"\x80": _PlainValue.protocol,
    b"(": _PlainValue.mark,
    b"N": lambda one: one.push(None),
    b"\x88": lambda one: one.push(True),
    b"\x89": lambda one: one.push(False),
    b"K": lambda one: one.push_number("<B"),
    b"M": lambda one: one.push_number("<H"),
    b"J": lambda one: one.push_number("<i"),
    b"\x8a": _PlainValue.push_long,
    b"G": _PlainValue.push_float,
    b"X": lambda one: one.push_text("<I"),
    b"}": lambda one: one.push({}),
    b"]": lambda one: one.push([]),
    b")": lambda one: one.push(()),
    b"q": lambda one: one.keep("<B"),
    b"r": lambda one: one.keep("<I"),
    b"h": lambda one: one.fetch("<B"),
    b"j": lambda one: one.fetch("<I"),
    b"a": _PlainValue.append,
    b"e": _PlainValue.extend,
    b"s": _PlainValue.set_item,
    b"u": _PlainValue.set_items,
    b"t": _PlainValue.push_marked_tuple,
    b"\x85": lambda one: one.push_tuple(1),
    b"\x86": lambda one: one.push_tuple(2),
    b"\x87": lambda one: one.push_tuple(3),
}
