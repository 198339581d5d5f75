#!/usr/bin/env python3
"""Draws docs/images/architecture.svg: the layers of pyproject.toml, and the imports between the packages of kit/.

    python scripts/architecture.py            # make reference runs it, too

tests/unit/test_reference.py fails when the picture differs from the code.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import grimp

REPO = Path(__file__).parents[1]
WIDTH, FLOOR, BOX, TOP = 1000, 66, 34, 20
PICTURE = REPO / "docs" / "images" / "architecture.svg"


def floors() -> list[list[str]]:
    """The packages, from the top layer to the bottom."""
    contracts = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    return [layer.replace(" ", "").split("|") for layer in contracts[0]["layers"]]


def imports() -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """The number of modules of one package that import another one, and the number of modules in each package."""
    graph = grimp.build_graph("kit")
    between: Counter[tuple[str, str]] = Counter()
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            here, there = (name.split(".")[1] if "." in name else "" for name in (module, other))
            if here and there and here != there:
                between[here, there] += 1
    return between, Counter(name.split(".")[1] for name in graph.modules if "." in name)


def picture() -> str:
    """The text of the SVG."""
    between, sizes = imports()
    places: dict[str, tuple[float, float]] = {}
    boxes = []
    for level, rooms in enumerate(floors()):
        y = TOP + level * FLOOR
        widths = [max(74, 9 * len(room) + 20) for room in rooms]
        gap = 14
        x = (WIDTH - sum(widths) - gap * (len(rooms) - 1)) / 2
        for room, width in zip(rooms, widths, strict=True):
            places[room] = (x + width / 2, y)
            boxes.append(
                f'<rect x="{x:.0f}" y="{y}" width="{width}" height="{BOX}" rx="5" fill="#e8eaf6" stroke="#3f51b5"/>'
                f'<text x="{x + width / 2:.0f}" y="{y + 15}" text-anchor="middle" font-weight="bold">{room}</text>'
                f'<text x="{x + width / 2:.0f}" y="{y + 29}" text-anchor="middle" fill="#555">{sizes[room]}</text>'
            )
            x += width + gap
    lines = []
    for (here, there), count in sorted(between.items()):
        if here in places and there in places and places[here][1] < places[there][1]:
            (x1, y1), (x2, y2) = places[here], places[there]
            middle = (y1 + BOX + y2) / 2
            lines.append(
                f'<path d="M{x1:.0f} {y1 + BOX} C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2}" '
                f'stroke-width="{min(0.6 + count / 6, 4):.1f}"><title>{here} imports {there}: {count}</title></path>'
            )
    height = TOP + len(floors()) * FLOOR
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">\n'
        f'<title>Rooms of kit/, their modules, and who imports whom</title>\n<rect width="100%" height="100%" fill="#fff"/>\n'
        f'<g fill="none" stroke="#9fa8da" stroke-opacity="0.55">\n{chr(10).join(lines)}\n</g>\n{chr(10).join(boxes)}\n</svg>\n'
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
