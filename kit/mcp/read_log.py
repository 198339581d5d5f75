"""A part of a log, by bytes: the answer is bounded, and a log of gigabytes needs no more memory or time than a small one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kit.errors import RunError
from kit.files import safe_text, untrusted_files
from kit.record import log_places, logs

MOST_BYTES = 32 << 10


def names(run_dir: Path, *, rank: int | None = None, role: str | None = None) -> list[str]:
    """The run's logs, such as `batch`, `task`, `rank-0`, `trainer/rank-0`."""
    wanted = logs.Wanted(ranks=() if rank is None else (rank,), role=role)
    return [logs.name_of(run_dir, path) for path in logs.sources(run_dir, wanted)]


def read_log_part(run_dir: Path, name: str, *, offset: int | None, most: int, project: Path) -> dict[str, Any]:
    """Bytes of a log from `offset`, or its last ones without it. `text` has its control characters escaped.

    most: bytes, MOST_BYTES at most. RunError for an unknown log, and for one that is a link out of the project.
    """
    known = {logs.name_of(run_dir, path): path for path in logs.sources(run_dir, logs.Wanted())}
    if name not in known:
        raise RunError(f"run {run_dir.name} has no log {name!r}", hint=f"one of: {', '.join([*known][:50]) or 'none'}")
    path = log_places.real(run_dir, known[name])
    _require_inside(path, run_dir, project)
    try:
        with untrusted_files.open_regular(path) as source:
            size = os.fstat(source.fileno()).st_size
            start = max(0, size - most) if offset is None else min(offset, size)
            chunk = os.pread(source.fileno(), min(most, MOST_BYTES), start)
    except OSError as error:
        raise RunError(
            f"log {name} of run {run_dir.name}: {error.strerror}", hint=f"kit status {run_dir.name}"
        ) from None
    end = start + len(chunk)
    cleaned = safe_text.clean_lines(chunk).decode()
    return {"log": name, "size": size, "offset": start, "next_offset": end if end < size else None, "text": cleaned}


def _require_inside(path: Path, run_dir: Path, project: Path) -> None:
    """RunError for a log that leads elsewhere: a program can make a link to any file of its user."""
    real = path.resolve()
    if not any(real.is_relative_to(folder.resolve()) for folder in (run_dir, project)):
        raise RunError(
            f"log {path.name} of run {run_dir.name} is outside the run and the project: {real}",
            hint=f"kit logs {run_dir.name}",
        )
