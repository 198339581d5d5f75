"""Runs and job files that a tool may name: those of this user, in this project."""

from __future__ import annotations

import os
from pathlib import Path

from kit.answers import named_runs
from kit.errors import RunError, UsageError
from kit.mcp.session import AgentSession
from kit.record import own_run


def find_run(name: str, *, to: str) -> Path:
    """The folder of a run, by its id, the unique start of one, or its job id. Its mirror is updated.

    RunError for a path, for a run that is not there, and for another user's. to: what is about to be done.
    """
    if not name or os.sep in name or name in {".", ".."}:
        raise RunError(f"{name!r}: a tool takes the id of a run, and no path", hint="list_runs")
    found = named_runs.find_dir(name, None, say=lambda _: None)
    own_run.require(found, to=to)
    return found


def job_file(session: AgentSession, given: str) -> Path:
    """A job file in the project, or the job file of a folder there. UsageError for one outside, also through a link."""
    path = (session.project / given).resolve()
    if not path.is_relative_to(session.project.resolve()):
        raise UsageError(
            f"{given}: outside the project {session.project}", hint="a path below the project, such as job.toml"
        )
    return path
