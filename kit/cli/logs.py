"""kit logs, kit tmux."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kit.cli.runs import RunName, RunsDir, folders


def logs(
    run: RunName = None,
    role: Annotated[
        str | None,
        typer.Argument(metavar="[ROLE]", help="One role only, of a run that has several.", show_default=False),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come, until the run ends.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", "-r", min=0, help="One rank only.")] = None,
    runs_dir: RunsDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line: source, line.")] = False,
) -> None:
    """Print the logs of a run, each line with its source in front."""
    from kit.cli.follow import as_line, follow_run
    from kit.runs import logs as reading
    from kit.runs import registry

    run_dir = registry.find_one(run, folders(runs_dir))
    reading.require_role(run_dir, role)
    reading.require_rank(run_dir, rank)
    if follow:
        follow_run(run_dir, rank=rank, role=role, fail=False, as_json=as_json)
        return
    empty = True
    for source, line in reading.follow(run_dir, rank=rank, role=role, ended=lambda: True, once=True):
        print(as_line(source, line, as_json=as_json))
        empty = False
    if empty:
        print(f"{run_dir.name}: nothing is logged yet; 'kit status {run_dir.name}' shows its state", file=sys.stderr)


def tmux(
    run: RunName = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Make the session, print its name, do not show it.")
    ] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Open a tmux session for a run: a shell, and its logs with a pane for each role. Goes back to one that is there."""
    from kit import data_folders
    from kit.runs import registry
    from kit.runs import tmux as sessions

    run_dir = registry.find_one(run, folders(runs_dir))
    session = sessions.session_of(run_dir)

    def following(role: str | None) -> list[str]:
        # This very kit, whatever the session's shell has in its PATH.
        return [sys.executable, "-m", "kit", "logs", str(run_dir), *([role] if role else []), "--follow"]

    if not sessions.exists(session):
        sessions.make(session, run_dir, cwd=data_folders.project(), following=following)
    if detach:
        print(session)
    elif code := sessions.attach(session):
        raise typer.Exit(code)
