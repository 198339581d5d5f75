"""kit report."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from kit.cli import completion
from kit.cli.runs import RunsDir, folders


def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|SWEEP]...",
            help="One run or sweep, or several runs to compare; default: the newest run.",
            autocompletion=completion.runs_and_sweeps,
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page; the data goes beside it, as .json.")] = Path(
        "report.html"
    ),
    runs_dir: RunsDir = None,
) -> None:
    """Write one HTML file that shows a run, a sweep, or several runs side by side; it needs no network and no server."""
    from kit.cli.follow import queue
    from kit.errors import UsageError
    from kit.reports import library, make, page
    from kit.runs import atomic

    if output.suffix != ".html":
        raise UsageError(f"{output}: the page is an .html file", hint=f"-o {output.with_suffix('.html')}")
    # Before the runs are read: without it nothing can be drawn.
    script = library.script()
    made = make.report(list(names or []), folders(runs_dir), queue=queue(), now=time.time())
    data = output.with_suffix(".json")
    atomic.write(data, json.dumps(made, separators=(",", ":"), allow_nan=False) + "\n", durable=False)
    atomic.write(output, page.html(made, script), durable=False)
    print(f"wrote {output} and {data}", file=sys.stderr)
    print(output)
