"""Messages to people at a run's events, which the batch script sends."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    return "notify" if made.job.notify.by == "batch" and made.job.notify.on else None


PART = Part(name="notices", asked_by=_asked_by, order=10)
