"""Checkpoints in the memory of nodes."""

from __future__ import annotations

from kit.planning import memory_checkpoints, steps
from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    return "checkpoint.memory_every" if made.job.checkpoint.memory_every else None


PART = Part(
    name="memory_checkpoints",
    asked_by=_asked_by,
    constants=lambda made: {"KIT_MEMORY_ARGV": steps.memory_step(made)},
    check=memory_checkpoints.check,
    modules=(*(f"lib/kit_memory{name}.py" for name in ("", "_files", "_state", "_transfer")), "lib/node_wire.py"),
    order=50,
)
