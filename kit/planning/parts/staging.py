"""The image is copied to each node's own disk."""

from __future__ import annotations

from kit.planning import steps
from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    return "image.stage" if steps.stage_step(made) else None


PART = Part(name="staging", asked_by=_asked_by)
