"""kit diff."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli import completion_candidates
from kit.cli.print_json import print_json
from kit.cli.runs import RunsDir, find_dir
from kit.files.safe_text import clean

if TYPE_CHECKING:
    from kit.comparison.recorded_run import Recorded

_HELP = "Run folder, run id, the first characters of a run id, or Slurm job id. The run may be a point of a sweep."


def diff(
    a: Annotated[
        str, typer.Argument(metavar="A", help=_HELP, show_default=False, autocompletion=completion_candidates.runs)
    ],
    b: Annotated[
        str, typer.Argument(metavar="B", help=_HELP, show_default=False, autocompletion=completion_candidates.runs)
    ],
    full: Annotated[
        bool,
        typer.Option("--full", help="Show all differences without limits, and the patches of the rendered scripts."),
    ] = False,
    runs_dir: RunsDir = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON. 'kit schema comparison' prints its schema.")
    ] = False,
) -> None:
    """Show the differences between two runs, the most important first: outcome, metrics, keys, code, image, nodes."""
    from kit.comparison import as_text
    from kit.comparison.compare import compare

    made = compare(*(recorded(find_dir(name, runs_dir)) for name in (a, b)))
    if as_json:
        print_json("diff", made.model_dump(mode="json"))
        return
    for line in as_text.lines(made, full=full):
        print(clean(line))


def recorded(run_dir: Path) -> Recorded:
    """A run with the data of Slurm and of its accounting."""
    from kit.answers.explain_run import explain
    from kit.cli.runs import warn
    from kit.cli.wait_and_follow import queue
    from kit.comparison.recorded_run import read_run
    from kit.hosts import from_accounting, other_jobs
    from kit.hosts import status as host_status

    (one,) = from_accounting.add(
        host_status.read_statuses([run_dir], queue=queue()), ask=other_jobs.ask_accounting(say=warn), every=True
    )
    return read_run(one, explain(one))
