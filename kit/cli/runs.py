"""kit runs, kit status, kit cancel, kit resume."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import sys
import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli import completion_candidates
from kit.cli.json_options import Json, ManifestJson
from kit.cli.print_json import print_json
from kit.files.safe_text import clean

if TYPE_CHECKING:
    from kit.answers.run_status import PartnerRun
    from kit.hosts.status import Status

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

RunName = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="Run folder, run id, the first characters of a run id, or Slurm job id; default: the newest run.",
        autocompletion=completion_candidates.runs,
    ),
]
ThisRun = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Run folder, run id, the first characters of a run id, or Slurm job id.",
        autocompletion=completion_candidates.runs,
    ),
]
RunsDir = Annotated[
    Path | None,
    typer.Option(
        "--runs", help="The folder in which to look for runs; default: the folders of all clusters.", show_default=False
    ),
]


def runs(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", "-t", help="List only runs in this state, such as RUNNING or FAILED; repeatable."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", "-n", metavar="PATTERN", help="List only runs whose job name or id matches, as 'gpt*'."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="List only runs submitted since: an age (90s, 10m, 2h, 1d) or a date and time."),
    ] = None,
    runs_dir: RunsDir = None,
    as_json: Json = False,
) -> None:
    """List the runs of this project. The queue of each cluster is read once for all its runs."""
    from kit.answers import run_status
    from kit.cli.print_table import Column, show
    from kit.cli.wait_and_follow import queue_for_display

    after = time_of(since, "--since") if since is not None else 0.0
    found = run_status.list_statuses(runs_dir, queue=queue_for_display(), say=warn)
    states = {given.upper() for given in state or ()}
    statuses = [run for run in found if _is_wanted(run, states=states, name=name, after=after)]
    if found and not statuses:
        known = ", ".join(sorted({run.state for run in found}))
        warn(f"none of the {len(found)} runs matches; their states: {known}")
    if as_json:
        print_json("runs", [dataclasses.asdict(run_status.listed(s)) for s in statuses])
        return
    columns = (
        Column("run"), Column("job", 1), Column("cluster", 5), Column("state"), Column("code", 2), Column("world", 4),
        Column("submitted", 3),
    )  # fmt: skip
    show(columns, _rows(statuses))
    for run in statuses:
        if run.facts.problem:
            print(f"{run.run_dir.name}: {clean(run.facts.problem)}", file=sys.stderr)


def _is_wanted(run: Status, *, states: Collection[str], name: str | None, after: float) -> bool:
    names = (run.facts.job_name, run.facts.run_id)
    return (
        (not states or run.state in states)
        and (name is None or any(fnmatch.fnmatchcase(known, name) for known in names))
        and run.facts.submitted_at >= after
    )


def time_of(given: str, option: str) -> float:
    """Seconds since the epoch, of an age or a time; UsageError that lists the accepted forms."""
    from kit.errors import UsageError

    found = re.fullmatch(r"(\d{1,9})([smhd])", given)
    if found:
        return time.time() - int(found[1]) * _SECONDS[found[2]]
    try:
        return datetime.fromisoformat(given).timestamp()
    except (ValueError, OverflowError, OSError):
        hint = f"{option} 10m, or {option} 2026-11-22T09:00:00"
        raise UsageError(f"{option} {given!r}: not a time", hint=hint) from None


def _rows(statuses: Sequence[Status]) -> list[tuple[object, ...]]:
    """The table's rows: of a training over two clusters, the second half stands below the first and is marked."""
    by_id = {run.facts.run_id: run for run in statuses}
    rows = []
    shown: set[str] = set()
    for run in statuses:
        if run.facts.run_id in shown:
            continue
        rows.append(_row(run))
        other = by_id.get(run.facts.partner or "")
        if other is not None and other.facts.partner == run.facts.run_id:
            name, *more = _row(other)
            rows.append((f"└ {name}", *more))
            shown.add(other.facts.run_id)
    return rows


def _row(run: Status) -> tuple[object, ...]:
    from kit.schema.world_size_text import world_size

    made = run.facts
    world = world_size(made.world_sizes)
    submitted = datetime.fromtimestamp(made.submitted_at, UTC)
    return made.run_id, run.job_id, made.cluster, run.state, run.exit_code, world, f"{submitted:%Y-%m-%d %H:%M}"


def status(run: RunName = None, runs_dir: RunsDir = None, as_json: Json = False) -> None:
    """Show one run: state, nodes, exit code, image, run folder, last reported step, and last quorum of replica groups."""
    from kit.answers import run_status
    from kit.cli.wait_and_follow import queue_for_display
    from kit.record import run_facts
    from kit.schema.world_size_text import sizes_text

    asked = queue_for_display()
    chosen_run = run_status.status_of(find_dir(run, runs_dir), queue=asked, say=warn)
    report = run_status.shown(chosen_run, queue=asked, say=warn)
    if as_json:
        print_json("status", dataclasses.asdict(report))
        return
    facts: dict[str, object] = {**dataclasses.asdict(report), "world_sizes": sizes_text(chosen_run.facts.world_sizes)}
    facts["training"] = f"{report.training}, {report.training.time}" if report.training else None
    facts["continued at"] = facts.pop("continued_at")
    facts["not watched"] = ", ".join(
        f"{node}: {owner} has made the folder of its reports" for node, owner in report.unwatched.items()
    )
    del facts["unwatched"], facts["quorum"]
    facts["arguments"] = run_facts.arguments(chosen_run.run_dir)
    facts["quorum"] = f"{report.quorum}, {report.quorum.time}" if report.quorum else None
    facts["partner"] = _partner(chosen_run, report.partner)
    width = max(map(len, facts))
    for name, value in facts.items():
        if value not in (None, ""):
            print(f"{name:<{width}}  {clean(str(value))}")


def _partner(run: Status, partner: PartnerRun | None) -> str | None:
    if partner is None:
        return None
    from kit.hosts import pair_relay

    if partner.cluster is None:
        return f"{partner.run}: not found, so it was probably not submitted; 'kit cancel {run.run_dir.name}' ends this half"
    relay = f", relay {partner.relay}" if partner.relay else ""
    active = run.run_dir.name if run.active else partner.run
    hint = f"; 'kit resume {active}' starts it again" if partner.relay in pair_relay.DOWN else ""
    return f"{partner.run} on {partner.cluster}: {partner.state}{relay}{hint}"


def cancel(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|SWEEP]...",
            help="Run folders, run ids, the first characters of run ids, Slurm job ids, or sweep ids; default: the newest run.",
            autocompletion=completion_candidates.runs_and_sweeps,
        ),
    ] = None,
    runs_dir: RunsDir = None,
    as_json: Json = False,
) -> None:
    """Cancel runs, or all points of sweeps. The ranks are asked to save and end. A second cancel ends them immediately."""
    from kit.cli.wait_and_follow import queue
    from kit.sweeps import cancel_by_name as cancelling

    done = cancelling.cancel(list(names or []), folders(runs_dir, *(names or [])), queue=queue())
    if as_json:
        print_json("cancel", [dataclasses.asdict(one) for one in done])
    for one in done:
        print(one, file=sys.stderr)


def resume(
    run: RunName = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the run has ended, then exit with the run's exit code.")
    ] = False,
    as_json: ManifestJson = False,
) -> None:
    """Submit an ended run again, in the same run folder. The program continues from the newest checkpoint.

    For a training over two clusters whose jobs have not ended, start the relay again if it is down.
    """
    from kit.cli.wait_and_follow import queue, wait_run
    from kit.submission.resume import restart_relay
    from kit.submission.resume import resume as submit_again

    chosen_run = find(run)
    if first := restart_relay(chosen_run, queue=queue()):
        manifest = chosen_run.manifest
        print(f"the relay of {first} runs again", file=sys.stderr)
    else:
        manifest = submit_again(chosen_run)
        print(f"job {manifest.job_id}: {manifest.run_id} continues", file=sys.stderr)
    if as_json:
        print_json("resume", manifest.model_dump(mode="json"))
    else:
        print(chosen_run.run_dir)
    if wait:
        wait_run(chosen_run.run_dir)


def find(name: str | None) -> Status:
    """The status of a run, by any of its names."""
    from kit.cli.wait_and_follow import queue
    from kit.hosts import status as host_status

    (one,) = host_status.read_statuses([find_dir(name, None)], queue=queue())
    return one


def warn(line: str) -> None:
    """Print a message of accounting, separate from the results."""
    print(f"kit: {line}", file=sys.stderr)


def folders(given: Path | None, *names: str | None) -> list[Path]:
    """The folders in which runs are searched, as in `named_runs.folders`."""
    from kit.answers import named_runs

    return named_runs.folders(given, *names, say=warn)


def find_dir(name: str | None, runs_dir: Path | None) -> Path:
    """The folder of a run, as in `named_runs.find_dir`."""
    from kit.answers import named_runs

    return named_runs.find_dir(name, runs_dir, say=warn)


def fetched(runs_dir: Path | None, names: Sequence[str | None]) -> list[Path]:
    """The folders of runs with updated files, as in `named_runs.fetched`."""
    from kit.answers import named_runs

    return named_runs.fetched(runs_dir, names, say=warn)
