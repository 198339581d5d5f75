"""Tables on stdout, quick for ten thousand rows. Whatever the terminal's width, no cell is cut: columns are left out instead."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from kit.text import clean

_GAP = "  "


def show(headings: Sequence[str], rows: Sequence[Sequence[str]], *, drop: Sequence[str] = ()) -> None:
    """Print a heading and a line for each row. drop: the columns that a narrow terminal goes without, the first one first."""
    cells = [[clean(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    kept = list(range(len(headings)))
    if sys.stdout.isatty():
        most = shutil.get_terminal_size().columns
        for name in drop:
            if sum(widths[i] for i in kept) + len(_GAP) * (len(kept) - 1) > most:
                kept.remove(headings.index(name))
    lines = (_GAP.join(row[i].ljust(widths[i]) for i in kept).rstrip() for row in cells)
    sys.stdout.write("\n".join(lines) + "\n")
