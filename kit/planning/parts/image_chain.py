"""Names the image that the nodes pass on to each other."""

from __future__ import annotations

from kit.planning import steps
from kit.planning.decisions import Decisions
from kit.planning.parts.part import Code


def _asked_by(decisions: Decisions) -> str | None:
    return "image.stage" if steps.image_chain(decisions) else None


CODE = Code(asked_by=_asked_by, constants=lambda made: {"KIT_CHAINED_IMAGE": steps.image_chain(made)})
