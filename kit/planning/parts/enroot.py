"""The container runtime Enroot without Pyxis."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    return "container.runtime" if made.job.container.runtime == "enroot" else None


PART = Part(name="enroot", asked_by=_asked_by)
