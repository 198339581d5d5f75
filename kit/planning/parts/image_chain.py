"""The nodes pass an image on to each other, block by block."""

from __future__ import annotations

from kit.planning import steps
from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part

_MODULES = ("blocks", "chain", "coordinator", "node", "orders", "sender", "share", "taker")


def _asked_by(made: Decisions) -> str | None:
    return "image.stage" if steps.image_chain(made) else None


PART = Part(
    name="image_chain",
    asked_by=_asked_by,
    constants=lambda made: {"KIT_CHAINED_IMAGE": steps.image_chain(made)},
    modules=(*(f"lib/image_{name}.py" for name in _MODULES), "lib/node_wire.py"),
    order=20,
)
