"""Watches what the processes of ranks do from outside, for a stall watch that finds silent programs."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    # Most runs have no [watch]: what their programs report, and Slurm, is enough for them.
    return "watch" if made.job.is_watched and made.job.monitor.enabled else None


PART = Part(name="observed_ranks", asked_by=_asked_by, order=70)
