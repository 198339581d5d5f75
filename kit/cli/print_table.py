"""Tables of the command line. If the terminal is too narrow, complete columns are left out; cells are never cut."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from kit.files.safe_text import clean

_GAP = "  "


@dataclass(frozen=True)
class Column:
    """A column: its heading, and its priority for being left out. 0 is always shown; the highest number is left out first."""

    heading: str
    drop: int = 0


# The rows of a table. They are iterated twice, so that 100,000 of them need not be in memory.
Rows = Collection[Sequence[object]]


def show(columns: Sequence[Column], rows: Rows, *, stream: TextIO | None = None) -> None:
    """Print a table. Only a terminal has a width: a file or a pipe gets all columns."""
    out = stream or sys.stdout
    width = shutil.get_terminal_size().columns if out.isatty() else None
    out.writelines(f"{line}\n" for line in lines(columns, rows, width=width))


def lines(columns: Sequence[Column], rows: Rows, *, width: int | None) -> Iterator[str]:
    """The table's lines. width: of the terminal in characters; None for no limit."""
    headings = [column.heading for column in columns]
    widths = [len(heading) for heading in headings]
    texts = [[_text(cell) for cell in row] for row in rows]
    for row in texts:
        widths = [max(width, len(cell)) for width, cell in zip(widths, row, strict=True)]
    kept = _kept([column.drop for column in columns], widths, width)
    for row in itertools.chain([[_text(heading) for heading in headings]], texts):
        yield _GAP.join(row[n].ljust(widths[n]) for n in kept).rstrip()


def _kept(drops: Sequence[int], widths: Sequence[int], width: int | None) -> list[int]:
    """The columns that fit. Of columns with equal priority, the rightmost is left out first."""
    kept = list(range(len(widths)))
    while width is not None and sum(widths[n] for n in kept) + len(_GAP) * (len(kept) - 1) > width:
        goes = max(kept, key=lambda n: (drops[n], n))
        if drops[goes] == 0:
            break
        kept.remove(goes)
    return kept


def _text(cell: object) -> str:
    return "" if cell is None else clean(str(cell))
