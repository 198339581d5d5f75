"""kit wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli import completion_candidates
from kit.cli.print_json import print_json
from kit.cli.runs import RunsDir, warn
from kit.files.safe_text import clean

if TYPE_CHECKING:
    from kit.answers.wait_for_runs import RunEvent

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Run folders, run ids, the first characters of run ids, Slurm job ids, or ids of sweeps: all their points.",
        autocompletion=completion_candidates.runs,
    ),
]
Any_ = Annotated[bool, typer.Option("--any", help="End when the first of the runs has ended, not all of them.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", metavar="SECONDS", min=0, help="End with exit code 9 after this time. The runs continue."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line, one for each event.")]


def wait(
    names: Names, any_: Any_ = False, timeout: Timeout = None, runs_dir: RunsDir = None, as_json: AsJson = False
) -> None:
    """Wait for runs, and print when one starts, is requeued, stalls or ends. Slurm is asked at most twice a minute.

    The exit code is that of the run, or of the first one that did not end well. A point that a search has stopped ended well.
    """
    from kit.answers import named_runs, wait_for_runs
    from kit.cli.wait_and_follow import goes_on, queue, require_success
    from kit.hosts import clusters, other_jobs
    from kit.sweeps import find

    run_dirs = named_runs.find_dirs(names, runs_dir, say=warn)
    watch = wait_for_runs.RunsWatch(run_dirs, queue=queue(), history=other_jobs.ask_accounting(say=warn), say=warn)
    with goes_on(run_dirs[0].name):
        for event in wait_for_runs.events(watch, first=any_, timeout=timeout):
            if as_json:
                print_json("wait", vars(event), indent=None)
            else:
                print(_line(event), flush=True)
        for one in watch.ended:
            if one.state != "COMPLETED" or one.exit_code:
                clusters.fetch(one.run_dir)
                if not find.was_stopped(one):
                    require_success(one)


def _line(event: RunEvent) -> str:
    code = f", exit code {event.exit_code}" if event.exit_code is not None else ""
    text = f" ({event.text})" if event.text else ""
    state = f": {event.state}" if event.event == "ended" else ""
    return clean(f"{event.time} {event.run} {event.event}{state}{code}{text}")
