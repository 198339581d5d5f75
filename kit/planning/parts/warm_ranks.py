"""A process of each node that has imported the program's modules, and forks the ranks of the next start."""

from __future__ import annotations

from typing import Any

from kit.planning import steps, warm_ranks
from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part

_MODULES = ("child", "client", "held", "imports", "meeting", "program", "ranks", "request")


def _asked_by(made: Decisions) -> str | None:
    return "retry.warm" if made.job.retry.warm else None


def _constants(made: Decisions) -> dict[str, Any]:
    return {"KIT_WARM_ARGV": steps.warm_step(made), "KIT_WARM_RANKS": made.main.world_size}


PART = Part(
    name="warm_ranks",
    asked_by=_asked_by,
    constants=_constants,
    check=warm_ranks.check,
    modules=("lib/kit_keep.py", *(f"lib/warm_{name}.py" for name in _MODULES)),
    order=40,
)
