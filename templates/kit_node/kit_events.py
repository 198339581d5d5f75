"""Adds events to the record of a run, state/events.jsonl, from a rank. docs/reference/events.md lists them."""

from __future__ import annotations

import json
import os
import time


def record(event: str, **values: object) -> None:
    """Add an event to the run's record. Outside a run, or where it cannot be written, do nothing."""
    run_dir = os.environ.get("KIT_RUN_DIR")
    if not run_dir:
        return
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "epoch": time.time(),
        "event": event,
        "job_id": int(os.environ.get("SLURM_JOB_ID") or 0),
        "restart": int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        "attempt": int(os.environ.get("KIT_ATTEMPT") or os.environ.get("KIT_RESTART_COUNT") or 0),
        **{name: str(value) for name, value in values.items()},
    }
    try:
        with open(f"{run_dir}/state/events.jsonl", "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(json.dumps(line) + "\n")
    except OSError:
        return


def record_resumed(step: int, source: str) -> None:
    """Add that the ranks continue from a step. source: memory, neighbour or file. Called by one rank."""
    record("resumed", step=step, source=source)
