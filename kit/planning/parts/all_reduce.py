"""One all-reduce over all ranks before the training."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    return "preflight.all_reduce_s" if made.job.preflight.all_reduce_s else None


PART = Part(name="all_reduce", asked_by=_asked_by, modules=("bin/all_reduce.py",))
