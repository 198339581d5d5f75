"""Containers that Pyxis has unpacked are removed."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    return "container.runtime" if made.job.container.runtime == "pyxis" else None


PART = Part(name="pyxis", asked_by=_asked_by)
