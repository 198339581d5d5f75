"""Enroot's FUSE daemons live as long as their container."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    return "container.runtime" if made.job.container.runtime in {"pyxis", "enroot"} else None


PART = Part(name="fuse_daemon", asked_by=_asked_by)
