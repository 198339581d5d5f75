"""kit watch."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kit.cli import completion_candidates
from kit.cli.runs import RunsDir, folders


def watch(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Runs to watch until they have ended. Default: all runs of the project, including later ones, until Ctrl-C.",
            autocompletion=completion_candidates.runs,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once, send the notices that are due, and exit.")] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Send run notices by mail, Slack, Teams, webhook or ntfy, as the job's notify table sets. Each event is sent once."""
    from kit.errors import UsageError
    from kit.files.safe_text import clean
    from kit.notices import send
    from kit.notices.watch import Watcher, lately, whom
    from kit.notices.watch import watch as look
    from kit.record import find_runs
    from kit.submission import catch_up

    send.require_apprise()
    queue = catch_up.queue()
    named = [find_runs.find_one(name, folders(runs_dir)) for name in names or []]
    for run_dir in named:
        # Check now, not only when there is something to report.
        if whom(run_dir) is None:
            hint = '[notify]\n       on = ["end"]\n       to = ["TEAM_SLACK"]'
            raise UsageError(f"{run_dir.name}: its job sends no notices: it has no [notify]", hint=hint)
    watcher = Watcher(say=lambda line: print(clean(line), file=sys.stderr, flush=True), queue=queue)
    look(watcher, lambda: named or lately(folders(runs_dir), queue), stay=not named, once=once)
