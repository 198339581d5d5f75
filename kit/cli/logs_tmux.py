"""kit logs, kit tmux."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from kit.cli.runs import RunName, RunsDir, find_dir, folders, time_of

Role = Annotated[
    str | None,
    typer.Argument(
        metavar="[ROLE]", help="Print only the logs of this role, if the run has roles.", show_default=False
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Print new lines as they are written, until the run ends.")
]
Rank = Annotated[
    list[int] | None, typer.Option("--rank", "-r", min=0, help="Print only the log of this rank; repeatable.")
]
Tail = Annotated[
    int | None, typer.Option("--tail", "-n", min=0, help="Print only the last N lines of each log.", metavar="N")
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        help=(
            "Print only lines since this time, by their time stamps: an age (90s, 10m, 2h, 1d) or a date and time. "
            "A line without a time is left out if a line with an earlier time follows it."
        ),
    ),
]
Grep = Annotated[
    str | None,
    typer.Option("--grep", "-g", metavar="PATTERN", help="Print only lines that match this regular expression."),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        help="For a training over two clusters: print only the half on this cluster.",
        show_default=False,
    ),
]
Raw = Annotated[bool, typer.Option("--raw", help="Print the bytes unchanged, without the sources.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line, with the keys source and line.")]


def logs(
    run: RunName = None,
    role: Role = None,
    follow: Follow = False,
    rank: Rank = None,
    tail: Tail = None,
    since: Since = None,
    grep: Grep = None,
    cluster: Cluster = None,
    raw: Raw = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the logs of a run. Each line begins with its source. Control characters are escaped and colours are removed."""
    from kit.cli.wait_and_follow import follow_halves, follow_run, show, widen_pipe
    from kit.record import logs as reading

    halves = _with_role(_halves(find_dir(run, runs_dir), cluster), role)
    for one in rank or ():
        for _, run_dir in halves:
            reading.require_rank(run_dir, one)
    wanted = reading.Wanted(
        ranks=frozenset(rank or ()),
        role=role,
        tail=tail,
        since=time_of(since, "--since") if since is not None else None,
        grep=_pattern(grep) if grep is not None else None,
    )
    if follow and len(halves) == 1:
        follow_run(halves[0][1], wanted, raw=raw, as_json=as_json, fail=False)
        return
    if follow:
        follow_halves(halves, wanted, raw=raw, as_json=as_json)
        return
    widen_pipe()
    for prefix, run_dir in halves:
        empty = True
        for source, chunk in reading.follow(run_dir, wanted, ended=lambda: True, once=True):
            show(f"{prefix}{source}", chunk, raw=raw, as_json=as_json)
            empty = False
        if empty:
            print(
                f"{run_dir.name}: nothing is logged yet; 'kit status {run_dir.name}' shows its state", file=sys.stderr
            )


def _halves(run_dir: Path, cluster: str | None) -> list[tuple[str, Path]]:
    """Log prefix and folder for each wanted half of a training over two clusters; for other runs an empty prefix and the folder.

    UsageError for a cluster on which there is no half.
    """
    from kit.errors import UsageError
    from kit.hosts import clusters, pair_relay
    from kit.record import run_facts

    facts = run_facts.read_facts(run_dir)
    if facts.partner is None:
        if cluster not in (None, facts.cluster):
            raise UsageError(
                f"{run_dir.name} is on cluster {facts.cluster}, not on {cluster}", hint="leave --cluster out"
            )
        return [("", run_dir)]
    if cluster == facts.cluster:
        return [("", run_dir)]
    folders(None, facts.partner)
    other = pair_relay.folder_of(facts.partner)
    if other is None and cluster is None:
        return [("", run_dir)]
    other_cluster = run_facts.read_facts(other).cluster if other else ""
    if other is None or cluster not in (None, other_cluster):
        problem = f"no half of {run_dir.name} is on cluster {cluster}"
        raise UsageError(
            problem, hint=" or ".join(f"--cluster {name}" for name in (facts.cluster, other_cluster) if name)
        )
    clusters.fetch(other)
    if cluster is not None:
        return [("", other)]
    return sorted([(f"{facts.cluster}/", run_dir), (f"{other_cluster}/", other)])


def _with_role(halves: list[tuple[str, Path]], role: str | None) -> list[tuple[str, Path]]:
    """The halves that have this role; UsageError if there is none."""
    from kit.errors import UsageError
    from kit.record import logs as reading

    matches, problems = [], []
    for half in halves:
        try:
            reading.require_role(half[1], role)
            matches.append(half)
        except UsageError as error:
            problems.append(error)
    if not matches:
        raise problems[0]
    return matches


def _pattern(given: str) -> re.Pattern[bytes]:
    from kit.errors import UsageError

    try:
        return re.compile(given.encode(errors="surrogateescape"))
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"--grep {given!r}: {error}", hint="--grep 'loss [0-9.]+'") from None


def tmux(
    run: RunName = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Create the session and print its name, but do not open it.")
    ] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Open a tmux session for a run, with a shell and a pane of logs for each role. A second call returns to the session."""
    from kit import data_folders
    from kit.record import find_runs
    from kit.sessions import tmux as sessions

    run_dir = find_runs.find_one(run, folders(runs_dir))
    session = sessions.session_of(run_dir)

    def following(role: str | None) -> list[str]:
        # Use this same kit, whatever the PATH in the session's shell.
        return [sys.executable, "-P", "-m", "kit", "logs", str(run_dir), *([role] if role else []), "--follow"]

    if not sessions.exists(session):
        sessions.make(session, run_dir, cwd=data_folders.project(), following=following)
    if detach:
        print(session)
    elif code := sessions.attach(session):
        raise typer.Exit(code)
