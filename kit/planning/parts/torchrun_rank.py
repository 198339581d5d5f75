"""Options of torchrun that rank.sh cannot pass on."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    return "torchrun" if made.job.torchrun.options() else None


PART = Part(name="torchrun_rank", asked_by=_asked_by)
