"""The pages of an image that a start reads are read ahead on the next one."""

from __future__ import annotations

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part


def _asked_by(made: Decisions) -> str | None:
    # Which of several images a process has is not known.
    pins = made.pins.distinct
    return "image" if len(pins) == 1 and pins[0].image.startswith("/") and pins[0].digest else None


PART = Part(name="hot_pages", asked_by=_asked_by, modules=("lib/hot_pages.py", "lib/squashfs_image.py"), order=60)
