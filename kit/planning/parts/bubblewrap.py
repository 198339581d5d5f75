"""The container runtime bubblewrap."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    return "container.runtime" if made.job.container.runtime == "bubblewrap" else None


PART = Part(name="bubblewrap", asked_by=_asked_by)
