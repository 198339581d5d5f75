"""The list of all runs and sweeps, the newest first."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from kit.hosts.status import Status
from kit.record.unmade_points import POINTS
from kit.reports.page import Live, template
from kit.serve.current_runs import Board
from kit.version import __version__

# A page of more is slow, and nobody reads it.
MOST_ROWS = 1000


def rows(board: Board) -> dict[str, Any]:
    """The rows of the list, as plain JSON. A sweep is one row; its points are on a separate page."""
    found = [_run(one) for one in board.runs().values() if one.run_dir.parent.name != POINTS]
    for folder, points in board.sweeps().items():
        states = Counter(one.state for one in points)
        found.append(
            {
                **_run(points[0]),
                "kind": "sweep",
                "id": folder.name,
                "slurm_job": None,
                "state": ", ".join(f"{number} {state}" for state, number in states.most_common()),
                "exit_code": None,
                "nodes": "",
            }
        )
    found.sort(key=lambda row: (row["submitted_at"], row["id"]), reverse=True)
    return {"kit": __version__, "rows": found[:MOST_ROWS], "left_out": max(0, len(found) - MOST_ROWS)}


def _run(one: Status) -> dict[str, Any]:
    made = one.facts
    return {
        "kind": "run",
        "id": one.run_dir.name,
        "slurm_job": None if one.job_id is None else str(one.job_id),
        "state": one.state,
        "exit_code": one.exit_code,
        "cluster": made.cluster,
        "launcher": made.launcher,
        "nodes": one.nodes,
        "problem": made.problem,
        "submitted_at": made.submitted_at,
        "submitted": f"{datetime.fromtimestamp(made.submitted_at, UTC):%Y-%m-%d %H:%M}",
    }


def html(listed: dict[str, Any], live: Live) -> str:
    """The HTML page that shows `rows`."""
    return template("list.html.jinja").render(listed=listed, live=live)
