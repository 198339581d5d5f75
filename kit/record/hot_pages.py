"""Removes lists of hot pages: the parts of an image that a start reads, which templates/parts/hot_pages keeps beside the runs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

FOLDER = ".hot-pages"


def forget(runs_dirs: Collection[Path], digests: Collection[str]) -> None:
    """Remove the lists of these images (64 hex digits each) from the folders of runs."""
    for runs_dir in runs_dirs:
        for sha256 in digests:
            (runs_dir / FOLDER / sha256).unlink(missing_ok=True)
