"""kit prune-runs."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli.json_options import Json
from kit.cli.print_json import print_json
from kit.cli.runs import RunsDir

if TYPE_CHECKING:
    from kit.archive.prune import OldRun


class EndedState(StrEnum):
    """The states in which a run may be removed."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    PREEMPTED = "PREEMPTED"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    LOST = "LOST"


OlderThan = Annotated[
    float | None,
    typer.Option(
        "--older-than", metavar="DAYS", min=0, help="Only runs whose last record is older than this number of days."
    ),
]
LargerThan = Annotated[
    float | None,
    typer.Option("--larger-than", metavar="GB", min=0, help="Only runs with more than this number of GB on the disk."),
]
States = Annotated[
    list[EndedState] | None,
    typer.Option("--state", help="Only runs in this state. For several states, give it several times."),
]
KeepLast = Annotated[
    int | None, typer.Option("--keep-last", metavar="N", min=1, help="Keep the N newest ended runs of each job.")
]
Referenced = Annotated[
    bool,
    typer.Option(
        "--referenced", help="Remove runs that a kept run names, too: the source of a rerun or of its checkpoint."
    ),
]


def prune_runs(
    *,
    older_than: OlderThan = None,
    larger_than: LargerThan = None,
    state: States = None,
    keep_last: KeepLast = None,
    referenced: Referenced = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove them without a question.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    runs_dir: RunsDir = None,
    as_json: Json = False,
) -> None:
    """Remove folders of ended runs, with logs and checkpoints. On a terminal kit asks first; elsewhere give --yes.

    A sweep is removed whole or not at all. Runs that a kept run names stay, and are listed with that reason.
    """
    from kit import data_folders
    from kit.archive import prune
    from kit.cli.wait_and_follow import queue
    from kit.errors import RunError, UsageError
    from kit.hosts import status as host_status
    from kit.record import find_runs

    if older_than is None and larger_than is None and keep_last is None and not state:
        raise UsageError("kit prune-runs: no runs are chosen", hint="kit prune-runs --older-than 30 --keep-last 3")
    wish = prune.Wish(
        older_than=older_than or 0.0, larger_than=(larger_than or 0.0) * 1e9, states=[*map(str, state or ())],
        keep_last=keep_last or 0, referenced=referenced,
    )  # fmt: skip
    # Of a cluster over ssh, only a copy is here, which stays: it need not be renewed.
    places = [runs_dir] if runs_dir else find_runs.folders(data_folders.project())
    # Slurm has the last word about a job: it is asked about runs whose folder says that they have ended, too.
    old_runs = prune.choose(host_status.of_facts(find_runs.find_all(places), queue=queue(), folder_first=False), wish)
    chosen = [one for one in old_runs if not one.kept]
    if not as_json:
        _show(old_runs)
    removed: list[OldRun] = []
    problems: list[str] = []
    if _is_wanted(chosen, yes=yes, dry_run=dry_run, asks=not as_json):
        prune.finish(places)
        problems = prune.remove(chosen, done=removed.append)
    if as_json:
        print_json("prune-runs", {"removed": [*map(_facts, removed)], "found": [*map(_facts, old_runs)]}, indent=None)
    else:
        _say_what_was_done(chosen, removed)
    if problems:
        raise RunError("\n".join(problems), hint="kit prune-runs again removes what is left")


def _is_wanted(chosen: list[OldRun], *, yes: bool, dry_run: bool, asks: bool) -> bool:
    """Whether to remove them: by --yes, or by an answer on a terminal."""
    if dry_run or not chosen:
        return False
    if yes or not asks or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return yes
    return typer.confirm(f"Remove {_sum(chosen)}?", default=False)


def _show(found: list[OldRun]) -> None:
    from kit.cli.print_table import Column, show

    columns = (Column("run"), Column("state"), Column("age"), Column("size"), Column("", 1))
    rows = [(one.folder.name, _states(one), f"{one.age:.0f} d", _size(one.size), _reason(one)) for one in found]
    if rows:
        show(columns, rows)


def _reason(one: OldRun) -> str:
    if one.kept:
        return f"kept: {one.kept}"
    return f"{one.named_by} names it" if one.named_by else ""


def _states(one: OldRun) -> str:
    return ", ".join(one.states)


def _say_what_was_done(chosen: list[OldRun], removed: list[OldRun]) -> None:
    if removed:
        print(
            f"removed {_sum(removed)}; 'kit prune-snapshots' removes the code that no run needs any more",
            file=sys.stderr,
        )
    elif chosen:
        print(f"{_sum(chosen)} would be removed; nothing was removed. With --yes, they are", file=sys.stderr)
    else:
        print("no run to remove", file=sys.stderr)


def _sum(those: list[OldRun]) -> str:
    count = len(those)
    return f"{count} run{'s' if count > 1 else ''}, {_size(sum(one.size for one in those))}"


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _facts(old_run: OldRun) -> dict[str, object]:
    return {
        "folder": str(old_run.folder),
        "job_name": old_run.job_name,
        "states": list(old_run.states),
        "age_days": round(old_run.age, 3),
        "bytes": old_run.size,
        "kept": old_run.kept or None,
        "named_by": old_run.named_by or None,
    }
