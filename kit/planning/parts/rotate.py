"""`kit rerun --rotate`: ranks record numbers of what they compute."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    return "rerun --rotate" if made.site.node_order else None


PART = Part(name="rotate", asked_by=_asked_by, modules=("lib/rank_numbers.py",))
