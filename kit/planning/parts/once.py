"""Starts lines that run once, on each node, or after the ranks: [once], [per_node] and [after]."""

from __future__ import annotations

from typing import Any

from kit.planning import steps
from kit.planning.decisions import Decisions
from kit.planning.parts.part import Code


def _asked_by(decisions: Decisions) -> str | None:
    return next((f"{table}.lines" for table in decisions.job.lines), None)


def _lines_step(decisions: Decisions, table: str) -> list[str]:
    """The lines of [once], [per_node] or [after]; empty if there are none. The batch script adds nodes."""
    lines, main, run = decisions.job.lines.get(table), decisions.main, decisions.paths.run
    if lines is None:
        return []
    step = [
        *steps.start_helper(f"kit-{table.replace('_', '-')}", None, f"{run.logs}/{table}.log"),
        "--kill-on-bad-exit=1",
    ]
    if not (lines.container and decisions.runtime.containerized):
        return [*step, f"{run.bin}/once.sh", decisions.paths.workspace, main.folder]
    return steps.contain(
        decisions, main, step, f"{decisions.paths.inside.run}/bin/once.sh", decisions.paths.inside.workdir, main.folder
    )


def _constants(decisions: Decisions) -> dict[str, Any]:
    return {
        "KIT_ONCE_ARGV": _lines_step(decisions, "once"),
        "KIT_PER_NODE_ARGV": _lines_step(decisions, "per_node"),
        "KIT_AFTER_ARGV": _lines_step(decisions, "after"),
        "KIT_LINES_LIMIT": {name: str(one.timeout_s) for name, one in decisions.job.lines.items() if one.timeout_s},
    }


CODE = Code(asked_by=_asked_by, constants=_constants)
