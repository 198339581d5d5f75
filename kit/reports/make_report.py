"""Makes the content of report.json for a run, a sweep, or several runs, given by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kit.comparison import as_text, recorded_run
from kit.comparison.compare import compare
from kit.errors import UsageError
from kit.files.safe_text import clean
from kit.health.run_record import Record
from kit.health.why import explain
from kit.hosts.host import Queue
from kit.hosts.status import Status
from kit.ledger import find
from kit.ledger.as_json import as_dict
from kit.ledger.find import FoundLedgers
from kit.ledger.ledger import Ledger, together
from kit.reports import collect
from kit.sweeps.points.key_names import short_names, shown
from kit.sweeps.results.results import Results, gather
from kit.version import __version__

# With more runs than this, curves hide each other and do not fit into the page.
MOST_RUNS = 200
_DIFF_LINES = 400


def report(names: Sequence[str], folders: list[Path], *, queue: Queue, now: float) -> dict[str, Any]:
    """The report. names: empty for the newest run, one run or sweep, or several runs. now: seconds since the epoch.

    RunError for an unknown name; UsageError if sweeps and runs are mixed.
    """
    made_at = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M} UTC"
    head = {"schema": collect.SCHEMA, "kit": __version__, "made_at": made_at}
    wanted: Sequence[str | None] = names or [None]
    ledgers = [find.ledgers(name, folders, queue=queue, now=now) for name in wanted]
    if len(ledgers) == 1:
        one = ledgers[0]
        if one.sweep is None:
            run = collect.run(one.runs[0], one.ledgers[0], one.price)
            return {**head, "kind": "run", "title": run["id"], "runs": [run]}
        return {**head, **_of_sweep(one, gather(one.runs[0].run_dir.parent.parent, queue=queue))}
    if any(one.sweep is not None for one in ledgers):
        raise UsageError(
            "a sweep has a report of its own", hint=f"kit report {next(o.sweep for o in ledgers if o.sweep)}"
        )
    return {**head, **_of_several(ledgers)}


def _of_several(ledgers: Sequence[FoundLedgers]) -> dict[str, Any]:
    runs = [(one.runs[0], one.ledgers[0], one) for one in ledgers]
    briefs = [
        {**collect.brief(status, closed, one.price), "label": status.run_dir.name} for status, closed, one in runs
    ]
    whole = together("all runs", [closed for _, closed, _ in runs])
    columns = ["run", "state", "last loss", "wall, s", "goodput", "image", "commit"]
    table = [{"id": run["id"], "best": False, "cells": _cells(run)} for run in briefs]
    title = " and ".join(run["id"] for run in briefs) if len(briefs) == 2 else f"{len(briefs)} runs"
    return {
        "kind": "several",
        "title": title,
        "columns": columns,
        "table": table,
        "runs": briefs,
        "ledger": as_dict(whole, ledgers[0].price),
        "diff": _diff(*(status for status, _, _ in runs)) if len(runs) == 2 else [],
    }


def _diff(a: Status, b: Status) -> list[str]:
    """The output of `kit diff A B`, without data that only accounting has."""
    made = compare(*(recorded_run.read_run(one, explain(Record(status=one))) for one in (a, b)))
    return [clean(line) for line in as_text.lines(made, full=False)][:_DIFF_LINES]


def _cells(run: dict[str, Any]) -> list[str]:
    facts, loss = run["facts"], run["loss"]
    return [
        run["id"],
        facts["state"],
        f"{loss[-1][1]:.5g}" if loss and loss[-1][1] is not None else "",
        f"{run['ledger']['wall_s']:,.1f}",
        f"{run['ledger']['goodput']:.1%}",
        facts["image"] or "",
        (facts["commit"] or "")[:12],
    ]


def _of_sweep(sweep: FoundLedgers, results: Results) -> dict[str, Any]:
    closed: dict[Path, tuple[Status, Ledger]] = {
        status.run_dir: (status, ledger)
        for status, ledger in zip([s for s in sweep.runs if not s.facts.problem], sweep.ledgers, strict=True)
    }
    short = short_names(results.keys)
    briefs: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    table: list[dict[str, Any]] = []
    for row in results.rows:
        values = {short[key]: row.values.get(key) for key in results.keys}
        metric = row.metrics.get(results.metric) if results.metric else None
        if metric is not None and not math.isfinite(metric):
            metric = None
        rows.append(
            {
                "point": row.index,
                "id": row.run_dir.name,
                **{k: _plain(v) for k, v in values.items()},
                (results.metric or "metric"): metric,
            }
        )
        label = " ".join(
            [f"point {row.index}", *(f"{key}={'' if value is None else shown(value)}" for key, value in values.items())]
        )
        if row.run_dir.resolve() in closed and len(briefs) < MOST_RUNS:
            status, ledger = closed[row.run_dir.resolve()]
            briefs.append({**collect.brief(status, ledger, sweep.price), "label": label})
        cells = [
            f"point {row.index}",
            *(("" if value is None else shown(value)) for value in values.values()),
            row.state,
        ]
        cells.append("" if metric is None else f"{metric:.6g}")
        is_best = results.best is not None and row.index == results.best.index
        table.append({"id": row.run_dir.name, "best": is_best, "cells": cells})
    return {
        "kind": "sweep",
        "title": results.sweep_id,
        "metric": results.metric,
        "goal": results.goal,
        "keys": [short[key] for key in results.keys],
        "columns": ["point", *short.values(), "state", results.metric or "metric"],
        "rows": rows,
        "table": table,
        "runs": briefs,
        "ledger": as_dict(together(results.sweep_id, sweep.ledgers), sweep.price),
    }


def _plain(value: object) -> object:
    """A swept value in a form that a chart can place; lists and tables become text."""
    return value if isinstance(value, int | float | str) else None if value is None else str(value)
