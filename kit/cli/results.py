"""kit results: the metrics of a sweep as a table, a file, a plot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kit.cli import completion_candidates
from kit.cli.json_options import Json
from kit.cli.print_json import print_json
from kit.files.safe_text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kit.sweeps.results.results import Results

# This many points with a better figure are named.
_SHOWN = 8

Sweep = Annotated[
    str | None,
    typer.Argument(
        metavar="[SWEEP]",
        help="Sweep folder, sweep id, or the first characters of a sweep id; default: the newest sweep.",
        autocompletion=completion_candidates.sweeps,
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        "-m",
        help="Sort the points by this metric; default: the metric of the sweep.",
        show_default=False,
    ),
]
Goal = Annotated[
    Literal["min", "max"] | None,
    typer.Option(
        "--goal",
        help="min: lower values are better. max: higher values are better. Default: the goal of the sweep.",
    ),
]
Reduce = Annotated[
    Literal["last", "min", "max"],
    typer.Option(
        "--value",
        help="Which value of a metric counts for a run: its last, its lowest (min) or its highest (max).",
    ),
]
Output = Annotated[
    list[Path] | None,
    typer.Option("--output", "-o", help="Write the table to this .csv, .json or .parquet file; repeatable."),
]
Plot = Annotated[
    list[Path] | None, typer.Option("--plot", help="Draw a plot into this .png, .svg or .html file; repeatable.")
]
X = Annotated[
    str | None,
    typer.Option("--x", help="The swept key on the plot's x axis; default: the first swept key with several numbers."),
]
RunsDir = Annotated[
    Path | None,
    typer.Option(
        "--runs",
        help="The folder in which to look for runs; default: the folders of all clusters.",
        show_default=False,
    ),
]


def results(
    sweep: Sweep = None,
    metric: Metric = None,
    goal: Goal = None,
    reduce: Reduce = "last",
    output: Output = None,
    plot: Plot = None,
    x: X = None,
    runs_dir: RunsDir = None,
    as_json: Json = False,
) -> None:
    """Show the metrics of a sweep's points in one table, the best point first."""
    from kit.cli.runs import folders
    from kit.cli.wait_and_follow import queue
    from kit.hosts import clusters
    from kit.record import garbage
    from kit.sweeps import find
    from kit.sweeps.results import plot as drawing
    from kit.sweeps.results import result_files
    from kit.sweeps.results.results import gather

    folder = find.find_one(sweep, folders(runs_dir))
    clusters.fetch_sweep(folder)
    table = gather(folder, queue=queue(), metric=metric, goal=goal, reduce=reduce)
    if as_json:
        print_json("results", result_files.facts(table))
    else:
        with garbage.paused():
            _print(table)
    for path in output or []:
        result_files.write(table, path)
        print(f"wrote {path}", file=sys.stderr)
    for path in plot or []:
        drawing.draw(table, path, x=x)
        print(f"wrote {path}", file=sys.stderr)


def _print(table: Results) -> None:
    from kit.cli.print_table import Column, show
    from kit.sweeps.points.key_names import short_names, shown

    short = short_names(table.keys)
    named = any(row.name for row in table.rows)
    columns = [
        Column("point"),
        *([Column("name")] if named else []),
        *(Column(short[key], 2) for key in table.keys),
        Column("state", 1),
        *(Column(heading, number) for number, heading in enumerate(table.headings().values())),
    ]
    rows = []
    for row in table.rows:
        values = [shown(row.values[key]) if key in row.values else "" for key in table.keys]
        metrics = [shown(row.metrics[name]) if name in row.metrics else "" for name in table.metrics]
        rows.append([row.index, *([row.name] if named else []), *values, row.state, *metrics])
    show(columns, rows)
    best = table.best
    chosen = [(row, [*table.objectives], "front") for row in table.front]
    if not chosen and best is not None:
        chosen = [(best, [table.metric or ""], "best")]
    for row, names, what in chosen:
        point = " ".join([row.name] * bool(row.name) + [f"{short[key]}={shown(row.values[key])}" for key in row.values])
        reached = ", ".join(f"{name} {shown(row.metrics[name])}" for name in names)
        print(f"{what}: point {row.index} ({point}): {reached}")
    for line in _beside(table):
        print(line)


def _beside(table: Results) -> Iterator[str]:
    """What the reader of the best point has to know: points with a better figure that are not done, and points without one."""
    from kit.sweeps.points.key_names import ranges, shown

    if len(table.codes) > 1:
        named = "; ".join(f"points {ranges(points)}: {code[:12]}" for code, points in [*table.codes.items()][:_SHOWN])
        first, second, *_ = (points[0] for points in table.codes.values())
        yield (
            f"the points ran {len(table.codes)} states of the code: {named}\n"
            f"  try: kit diff {table.sweep_id}.{first} {table.sweep_id}.{second}"
        )
    if table.sources:
        named = "; ".join(f"{clean(name)} ({count} points)" for name, count in [*table.sources.items()][:_SHOWN])
        yield f"the programs reported nothing to the kit; the numbers are from: {named}"
    better = table.better_but_not_done
    for row in better[:_SHOWN]:
        figure = shown(row.metrics[table.metric or ""])
        yield f"not counted: point {row.index} is {row.state} with a better {table.metric} so far: {figure}"
    if len(better) > _SHOWN:
        yield f"… and {len(better) - _SHOWN} more that have not completed"
    if missing := table.without_result:
        total = sum(missing.values())
        states = ", ".join(f"{count} {state}" for state, count in sorted(missing.items()))
        yield f"no result: {total} of {len(table.rows)} points have no {table.metric} ({states})"
