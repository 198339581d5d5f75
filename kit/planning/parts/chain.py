"""A job whose run continues in the next job of a chain."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    return "chain" if made.job.chain else None


PART = Part(name="chain", asked_by=_asked_by)
