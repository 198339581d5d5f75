"""The command `kit top`: a live table of the ranks of a run."""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli.json_options import Json
from kit.cli.print_json import print_json
from kit.cli.runs import RunName, RunsDir, find_dir
from kit.files.safe_text import clean

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from kit.health.progress import RankProgress
    from kit.hosts.status import Status

_LOOK_S = 2.0
_MOST_ON_SCREEN = 200
_BLAMED = "others wait for it"


def top(
    run: RunName = None,
    once: Annotated[bool, typer.Option("--once", help="Print the table once and exit.")] = False,
    runs_dir: RunsDir = None,
    as_json: Json = False,
) -> None:
    """Show the step, the phase and the step time of each rank of a run, and the rank that the others wait for.

    If the program reports nothing, the steps come from the ranks' logs.
    """
    from kit.cli.wait_and_follow import queue
    from kit.hosts import status as host_status

    run_dir = find_dir(run, runs_dir)
    (status,) = host_status.read_statuses([run_dir], queue=queue())
    if as_json:
        print_json("top", _as_json(status))
    elif once or not sys.stdout.isatty():
        _show(status)
    else:
        _live(run_dir, status)


def _looked(one: Status) -> list[RankProgress]:
    from kit.health import progress
    from kit.record import run_facts

    return progress.read_ranks(one.run_dir, one.job_id, since=progress.begun(run_facts.events(one.run_dir)))


def _as_json(run: Status) -> dict[str, object]:
    from kit.health import progress, rank_logs

    ranks = _looked(run)
    found = progress.stall(ranks) if run.state == "RUNNING" else None
    blamed = (
        {"rule": found.rule.id, "culprits": [r.rank for r in found.culprits], "limit_s": found.limit} if found else None
    )
    return {
        "run": run.run_dir.name,
        "state": run.state,
        "ranks": [dataclasses.asdict(r) for r in ranks],
        "from_logs": [] if ranks else [dataclasses.asdict(r) for r in rank_logs.read_steps(run.run_dir)],
        "stall": blamed,
    }


def _rows(run: Status) -> list[tuple[object, ...]]:
    from kit.health import progress

    ranks = _looked(run)
    if not ranks:
        return _rows_from_logs(run)
    found = progress.stall(ranks) if run.state == "RUNNING" else None
    slow = progress.straggler(ranks)

    stalled, culprits = (set(found.stalled), set(found.culprits)) if found else (set(), set())

    def mark(rank: RankProgress) -> str:
        if rank in stalled:
            return _BLAMED if rank in culprits else "is stalled"
        return f"{_BLAMED}, {slow[1]:.0%} of a step" if slow and slow[0] == rank else ""

    def row(r: RankProgress) -> tuple[object, ...]:
        name = f"{r.role}/{r.rank}" if r.role else r.rank
        return name, r.node, r.step, r.phase, f"{r.took:.3g} s" if r.every else "", f"{r.idle:.0f} s", mark(r)

    return [row(rank) for rank in ranks]


def _rows_from_logs(run: Status) -> list[tuple[object, ...]]:
    """The rows of a program that reports nothing: of the ranks whose logs tell a step, with what it was read from."""
    from kit.health import rank_logs

    return [
        (
            f"{r.role}/{r.rank}" if r.role else r.rank, r.node, r.step, "", f"{r.took:.3g} s" if r.took else "",
            f"{r.idle:.0f} s", f"from {clean(r.source)}",
        )
        for r in rank_logs.read_steps(run.run_dir)
    ]  # fmt: skip


def _show(run: Status) -> None:
    from kit.cli.print_table import Column, show

    rows = _rows(run)
    if not rows:
        print(
            f"{run.run_dir.name}: {run.state}; no rank has reported anything, and no log has a step in it: docs/guides/health.md "
            "says how",
            file=sys.stderr,
        )
        return
    named = (("rank", 0), ("node", 2), ("step", 0), ("phase", 1), ("step time", 3), ("for", 1), ("", 0))
    show([Column(name, drop) for name, drop in named], rows)


def _live(run_dir: Path, run: Status) -> None:
    """Update the table until Ctrl-C or the end of the run. Slurm is asked once; the reports are files."""
    from rich.live import Live

    from kit.cli.wait_and_follow import queue
    from kit.hosts import clusters
    from kit.hosts import status as host_status
    from kit.record import run_facts

    with Live(_table(run), auto_refresh=False) as screen:
        while run_facts.read_facts(run_dir).last_event not in {"end", "requeue"}:
            time.sleep(_LOOK_S)
            clusters.fetch(run_dir)
            screen.update(_table(run), refresh=True)
    (run,) = host_status.read_statuses([run_dir], queue=queue())
    print(f"{run_dir.name}: {run.state}; 'kit why {run_dir.name}' says why", file=sys.stderr)


def _table(one: Status) -> Table:
    from rich.table import Table

    table = Table("rank", "node", "step", "phase", "step time", "for", "", title=one.run_dir.name, box=None)
    # A screen shows the first lines of a table: the rank that others wait for must be among them.
    rows = sorted(_rows(one), key=lambda row: (not str(row[-1]).startswith(_BLAMED), not row[-1]))
    for row in rows[:_MOST_ON_SCREEN]:
        table.add_row(*map(str, row), style="bold red" if str(row[-1]).startswith(_BLAMED) else None)
    if len(rows) > _MOST_ON_SCREEN:
        table.caption = f"{len(rows) - _MOST_ON_SCREEN} more ranks: kit top --once"
    return table
