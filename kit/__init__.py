"""A containerized launcher kit for Slurm clusters with Enroot and Pyxis.

`from kit import Job, plan, submit` is the Python API (kit/api.py, docs/guides/python.md). It is imported when one of its names
is first used, so that `import kit` stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit.api import (
        PlannedJob,
        Run,
        SweepRun,
        cancel,
        find_run,
        list_runs,
        logs,
        plan,
        rerun,
        results,
        status,
        submit,
        sweep,
        wait,
        watch_runs,
        why,
    )
    from kit.schema.job import Job

__all__ = [
    "Job",
    "PlannedJob",
    "Run",
    "SweepRun",
    "cancel",
    "find_run",
    "list_runs",
    "logs",
    "plan",
    "rerun",
    "results",
    "status",
    "submit",
    "sweep",
    "wait",
    "watch_runs",
    "why",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kit' has no attribute {name!r}")
    from kit import api

    return getattr(api, name)
