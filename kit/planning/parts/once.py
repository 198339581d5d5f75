"""Lines that run once, on each node, or after the ranks: [once], [per_node] and [after]."""

from __future__ import annotations

from typing import Any

from kit.planning import steps
from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    return next((f"{table}.lines" for table in made.job.lines), None)


def _constants(made: Decisions) -> dict[str, Any]:
    return {
        "KIT_ONCE_ARGV": steps.lines_step(made, "once"),
        "KIT_PER_NODE_ARGV": steps.lines_step(made, "per_node"),
        "KIT_AFTER_ARGV": steps.lines_step(made, "after"),
        "KIT_LINES_LIMIT": {name: str(one.timeout_s) for name, one in made.job.lines.items() if one.timeout_s},
    }


PART = Part(name="once", asked_by=_asked_by, constants=_constants, order=30)
