"""kit report."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from kit.cli import completion_candidates
from kit.cli.runs import RunsDir, fetched


def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|SWEEP]...",
            help="One run or sweep, or several runs to compare; default: the newest run.",
            autocompletion=completion_candidates.runs_and_sweeps,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Path of the HTML file. The data go into a .json file next to it.",
            show_default="reports/RUN.html",
        ),
    ] = None,
    runs_dir: RunsDir = None,
) -> None:
    """Write one HTML file that shows a run, a sweep, or several runs side by side. The file needs no network or server."""
    from kit.cli.wait_and_follow import queue
    from kit.errors import UsageError
    from kit.files import atomic_write
    from kit.record import reports_folder
    from kit.reports import make_report, page, vega_library

    if output is not None and output.suffix != ".html":
        raise UsageError(f"{output}: the page is an .html file", hint=f"-o {output.with_suffix('.html')}")
    # Load the library before reading the runs: without it nothing can be drawn.
    script = vega_library.script()
    content = make_report.report(list(names or []), fetched(runs_dir, names or [None]), queue=queue(), now=time.time())
    if output is None:
        name = "comparison" if content["kind"] == "several" else content["title"]
        output = reports_folder.shown(reports_folder.take() / f"{name}.html")
    data = output.with_suffix(".json")
    atomic_write.write(data, json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n", durable=False)
    atomic_write.write(output, page.html(content, script), durable=False)
    print(f"wrote {output} and {data}", file=sys.stderr)
    print(output)
