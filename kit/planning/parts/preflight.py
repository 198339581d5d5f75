"""Checks of each node before the ranks start."""

from __future__ import annotations

from kit.planning import steps
from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    return "preflight" if steps.preflight_step(made) else None


PART = Part(name="preflight", asked_by=_asked_by)
