"""Silence of a running job: after a while it is worth a look at its ranks."""

from __future__ import annotations

import time

from kit.health import progress
from kit.health.run_record import Record
from kit.schema.run_paths import RunPaths

# Most programs print a line or move a progress bar more often.
_SILENT_S = 60.0


def seconds(record: Record, now: float | None = None) -> float | None:
    """For how long the logs of the ranks have not grown. None if that is not long, or if the ranks report steps or have no log."""
    now = time.time() if now is None else now
    begun = progress.begun(record.events)
    if not begun or progress.read_ranks(record.run_dir, record.status.job_id, since=begun):
        return None
    times = [begun]
    for pattern in ("**/rank-*.log", "**/task-*.log"):
        for path in RunPaths(record.run_dir).logs.glob(pattern):
            try:
                times.append(path.stat().st_mtime)
            except OSError:
                continue
    quiet = now - max(times)
    return quiet if len(times) > 1 and quiet >= _SILENT_S else None
