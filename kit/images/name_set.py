"""A set of hundreds of thousands of names in a few megabytes."""

from __future__ import annotations

from array import array

_FREE = 0


class Names:
    """A set of names, stored as 64-bit hashes: 12 to 24 bytes each, where a set of str takes 150."""

    def __init__(self) -> None:
        self._table = array("q", [_FREE]) * 1024
        self._used = 0

    def add(self, name: str) -> None:
        """Add a name."""
        place = self._place(hash(name) or 1)
        if self._table[place] == _FREE:
            self._table[place] = hash(name) or 1
            self._used += 1
            if 3 * self._used > 2 * len(self._table):
                self._grow()

    def __contains__(self, name: str) -> bool:
        return self._table[self._place(hash(name) or 1)] != _FREE

    def _place(self, mark: int) -> int:
        """The index of a hash, or of the free place for it (open addressing with linear probing)."""
        table, last = self._table, len(self._table) - 1
        place = mark & last
        while table[place] not in (mark, _FREE):
            place = place + 1 & last
        return place

    def _grow(self) -> None:
        old, self._table = self._table, array("q", [_FREE]) * (2 * len(self._table))
        for mark in old:
            if mark != _FREE:
                self._table[self._place(mark)] = mark
