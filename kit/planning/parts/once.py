"""Starts lines that run once, on each node, or after the ranks: [once], [per_node] and [after]."""

from __future__ import annotations

from typing import Any

from kit.planning import steps
from kit.planning.decisions import Decisions
from kit.planning.parts.part import Code


def _asked_by(made: Decisions) -> str | None:
    return next((f"{table}.lines" for table in made.job.lines), None)


def _lines_step(made: Decisions, table: str) -> list[str]:
    """The lines of [once], [per_node] or [after]; empty if there are none. The batch script adds nodes."""
    lines, main, run = made.job.lines.get(table), made.main, made.paths.run
    if lines is None:
        return []
    step = [
        *steps.start_helper(f"kit-{table.replace('_', '-')}", None, f"{run.logs}/{table}.log"),
        "--kill-on-bad-exit=1",
    ]
    if not (lines.container and made.runtime.containerized):
        return [*step, f"{run.bin}/once.sh", made.paths.workspace, main.folder]
    return steps.contain(
        made, main, step, f"{made.paths.inside.run}/bin/once.sh", made.paths.inside.workdir, main.folder
    )


def _constants(made: Decisions) -> dict[str, Any]:
    return {
        "KIT_ONCE_ARGV": _lines_step(made, "once"),
        "KIT_PER_NODE_ARGV": _lines_step(made, "per_node"),
        "KIT_AFTER_ARGV": _lines_step(made, "after"),
        "KIT_LINES_LIMIT": {name: str(one.timeout_s) for name, one in made.job.lines.items() if one.timeout_s},
    }


CODE = Code(asked_by=_asked_by, constants=_constants)
