"""A container's image is mounted."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    return "container.runtime" if made.runtime.containerized else None


PART = Part(name="image_mount", asked_by=_asked_by)
