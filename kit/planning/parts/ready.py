"""A role is up when it answers its check."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    return "roles" if any(placed.role.ready for placed in made.roles) else None


PART = Part(name="ready", asked_by=_asked_by)
