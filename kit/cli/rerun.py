"""kit rerun."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli import completion_candidates
from kit.cli.job_options import Follow, Overrides, Wait
from kit.cli.json_options import ManifestJson
from kit.cli.runs import ThisRun

if TYPE_CHECKING:
    from kit.submission.prepare_run import Prepared


Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        help="Run on this cluster, with the cluster's defaults and the keys that the job file and --set gave the earlier run.",
        show_default="the cluster of the run",
        autocompletion=completion_candidates.clusters,
    ),
]
FromStep = Annotated[
    int | None,
    typer.Option("--from-step", metavar="N", min=0, help="Start from a copy of the run's checkpoint of step N."),
]
Live = Annotated[bool, typer.Option("--live", help="Use the job's folder as it is now, instead of the run's snapshot.")]
Rotate = Annotated[
    bool,
    typer.Option(
        "--rotate",
        help="Repeat the run's last steps three times, each time with the ranks on other nodes. "
        "Name a node that computes wrong numbers.",
    ),
]
Avoid = Annotated[
    bool, typer.Option("--avoid", help="With --rotate: exclude the named node from new jobs for a day, without asking.")
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Show the files that a submit would write and the command that it would run. Nothing is submitted.",
    ),
]


def rerun(
    run: ThisRun,
    set_: Overrides = None,
    cluster: Cluster = None,
    from_step: FromStep = None,
    live: Live = False,
    rotate: Rotate = False,
    avoid: Avoid = False,
    dry_run: DryRun = False,
    wait: Wait = False,
    follow: Follow = False,
    as_json: ManifestJson = False,
) -> None:
    """Repeat an earlier run with the same code, image, job and seed, in a new run folder."""
    from kit.errors import UsageError

    overrides = list(set_ or [])
    if avoid and not rotate:
        raise UsageError("--avoid works only together with --rotate", hint="kit nodes --avoid NODE")
    if rotate:
        if cluster or live or follow or wait:
            raise UsageError(
                "--rotate cannot be used with --cluster, --live, --follow or --wait: it always takes the run's own cluster "
                "and code, and waits for the end",
                hint="leave these options out",
            )
        from kit.cli.rerun_rotate import rotate as moved

        moved(run, from_step=from_step, overrides=overrides, avoid=avoid, dry_run=dry_run, as_json=as_json)
        return
    if as_json and follow:
        raise UsageError("--json and --follow both write to stdout", hint="'kit rerun --json --wait' waits for the end")
    prepared = _prepared(run, cluster, overrides, from_step=from_step, live=live)
    if dry_run:
        from kit.cli.render import render_plan

        render_plan(prepared.plan, as_json=as_json)
        return
    from kit.cli.submit import submit_run
    from kit.cli.wait_and_follow import follow_run, wait_run

    folder = submit_run(prepared, [], as_json=as_json, say_how=not (wait or follow))
    if follow:
        follow_run(folder)
    elif wait:
        wait_run(folder)


def _prepared(run: str, cluster: str | None, overrides: list[str], *, from_step: int | None, live: bool) -> Prepared:
    """The run that would be submitted. Prints what differs from the earlier one."""
    from kit.cli.runs import folders
    from kit.cli.submit_messages import show_arguments, show_warnings
    from kit.record import find_runs
    from kit.submission.rerun import differences, prepare_rerun

    run_dir = find_runs.find_one(run, folders(None, run))
    made = prepare_rerun(run_dir, cluster=cluster, overrides=overrides, from_step=from_step, live=live)
    show_arguments([made])
    show_warnings([made])
    for one in differences(made):
        print(f"kit: {one}", file=sys.stderr)
    return made
