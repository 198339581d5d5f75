"""World sizes by role, as text for a banner, a sentence, or a column of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import groupby

# The name of a plain job's only step. Its files are in the run folder itself, and no role has this name.
PLAIN = "train"


def world_text(sizes: Mapping[str, int]) -> str:
    """World sizes as text: `world size 4`, or `world sizes: trainer 4, replica-0 to replica-7 2 each`."""
    return f"world size{'' if set(sizes) == {PLAIN} else 's:'} {sizes_text(sizes)}"


def sizes_text(sizes: Mapping[str, int]) -> str:
    """World sizes without the introducing words."""
    if set(sizes) == {PLAIN}:
        return str(sizes[PLAIN])
    texts = []
    for (_, size), group in groupby(sizes.items(), key=lambda item: (item[0].rstrip("0123456789"), item[1])):
        names = [name for name, _ in group]
        texts.append(f"{names[0]} {size}" if len(names) == 1 else f"{names[0]} to {names[-1]} {size} each")
    return ", ".join(texts)


def world_size(sizes: Mapping[str, int]) -> str:
    """World sizes for a column of a table: `4`, `4+1`, `8x2`."""
    counts = Counter(sizes.values())
    return "+".join(str(size) if count == 1 else f"{count}x{size}" for size, count in counts.items())
