"""Tables of the command line: where the terminal is too narrow, whole columns are left out, and no cell is ever cut."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from kit.text import clean

_GAP = "  "


@dataclass(frozen=True)
class Column:
    """A column: its heading, and how readily it is left out. 0 stays at any width; the highest number goes first."""

    heading: str
    drop: int = 0


def show(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, stream: TextIO | None = None) -> None:
    """Print a table. Only a terminal has a width: a file or a pipe gets all columns."""
    out = stream or sys.stdout
    width = shutil.get_terminal_size().columns if out.isatty() else None
    out.write("\n".join(lines(columns, rows, width=width)) + "\n")


def lines(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, width: int | None) -> list[str]:
    """The table's lines. width: of the terminal in characters; None for no limit."""
    cells = [[column.heading for column in columns], *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(columns))]
    kept = _kept([column.drop for column in columns], widths, width)
    return [_GAP.join(row[n].ljust(widths[n]) for n in kept).rstrip() for row in cells]


def _kept(drops: Sequence[int], widths: Sequence[int], width: int | None) -> list[int]:
    """The columns that fit; of those that go equally readily, the rightmost goes first."""
    kept = list(range(len(widths)))
    while width is not None and sum(widths[n] for n in kept) + len(_GAP) * (len(kept) - 1) > width:
        goes = max(kept, key=lambda n: (drops[n], n))
        if drops[goes] == 0:
            break
        kept.remove(goes)
    return kept


def _text(cell: object) -> str:
    return "" if cell is None else clean(str(cell))
