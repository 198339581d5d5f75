"""The logs of a role's nodes have names that tell role and node."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    return "roles" if any(not placed.plain for placed in made.roles) else None


PART = Part(name="role_links", asked_by=_asked_by)
