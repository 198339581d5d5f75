"""Excludes images that are no file with a digest."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Code


def _asked_by(decisions: Decisions) -> str | None:
    return "image" if any(pin.image.startswith("/") and pin.digest for pin in decisions.pins.distinct) else None


CODE = Code(asked_by=_asked_by)
