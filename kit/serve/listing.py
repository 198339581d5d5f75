"""The list of all runs and sweeps, the newest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kit.hosts.status import Status
from kit.record.unmade_points import POINTS
from kit.reports import headline
from kit.reports.page import Live, template
from kit.serve.current_runs import Board
from kit.serve.glances import Glance, Glances
from kit.version import __version__

# A page of more is slow, and nobody reads it.
MOST_ROWS = 1000


def rows(board: Board, glances: Glances) -> dict[str, Any]:
    """The rows of the list, as plain JSON. A sweep is one row; its points are on a separate page."""
    runs = newest_runs(board)
    read = glances.read_all(runs)
    listed = [_run(run) | asdict(read.get(run.run_dir.name, Glance())) for run in runs]
    listed += [_sweep(folder, points) for folder, points in board.sweeps().items()]
    listed.sort(key=lambda row: (row["submitted_at"], row["id"]), reverse=True)
    return {"kit": __version__, "rows": listed[:MOST_ROWS], "left_out": max(0, len(listed) - MOST_ROWS)}


def newest_runs(board: Board) -> list[Status]:
    """The runs that are rows of their own, the newest first."""
    own = [run for run in board.runs().values() if run.run_dir.parent.name != POINTS]
    return sorted(own, key=lambda run: (run.facts.submitted_at, run.run_dir.name), reverse=True)


def _sweep(folder: Path, points: Sequence[Status]) -> dict[str, Any]:
    states = Counter(point.state for point in points)
    kinds = {headline.kind_of(state) for state in states}
    kind = next((one for one in ("live", "bad", "calm") if one in kinds), "good")
    return {
        **_run(points[0]),
        **asdict(Glance()),
        **_look(kind),
        "kind": "sweep",
        "id": folder.name,
        "slurm_job": None,
        "state": ", ".join(f"{number} {state}" for state, number in states.most_common()),
        "exit_code": None,
        "nodes": "",
    }


def _run(run: Status) -> dict[str, Any]:
    facts = run.facts
    return {
        "kind": "run",
        "id": run.run_dir.name,
        "slurm_job": None if run.job_id is None else str(run.job_id),
        "state": run.state,
        **_look(headline.kind_of(run.state)),
        "exit_code": run.exit_code,
        "cluster": facts.cluster,
        "launcher": facts.launcher,
        "nodes": run.nodes,
        "problem": facts.problem,
        "submitted_at": facts.submitted_at,
        "submitted": f"{datetime.fromtimestamp(facts.submitted_at, UTC):%Y-%m-%d %H:%M}",
    }


def _look(kind: str) -> dict[str, str]:
    """The colour and the mark of a state."""
    return {"look": kind, "mark": headline.MARKS[kind]}


def html(listed: dict[str, Any], live: Live) -> str:
    """The HTML page that shows `rows`."""
    return template("list.html.jinja").render(listed=listed, live=live)
