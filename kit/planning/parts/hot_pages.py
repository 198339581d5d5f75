"""Excludes hot pages where it is not known which image a process has."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Code


def _asked_by(decisions: Decisions) -> str | None:
    pins = decisions.pins.distinct
    return "image" if len(pins) == 1 and pins[0].image.startswith("/") and pins[0].digest else None


CODE = Code(asked_by=_asked_by)
