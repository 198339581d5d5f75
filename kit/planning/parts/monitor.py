"""The GPUs' numbers and the ranks' reports are written on each node."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    # memory.sh removes the reports of killed ranks, too.
    return "monitor" if made.job.monitor.enabled or made.job.checkpoint.memory_every else None


PART = Part(name="monitor", asked_by=_asked_by)
