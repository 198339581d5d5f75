"""Arguments and options that several commands about a job have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kit.cli import completion_candidates

JobFile = Annotated[
    Path, typer.Argument(metavar="[JOB]", help="Job file, or the folder that holds job.toml.", show_default="job.toml")
]


def _cluster(named: str) -> Any:
    return typer.Option(
        "--cluster",
        "-c",
        help=named,
        show_default="KIT_CLUSTER, else the cluster in your config.toml, else the only one that you or the project define, "
        "else local",
        autocompletion=completion_candidates.clusters,
    )


ClusterName = Annotated[str | None, _cluster("The cluster to use: a name in clusters/.")]
ClusterChoice = Annotated[
    str | None,
    _cluster(
        "The cluster to use: a name in clusters/. For 'any', or for several names separated by commas, the kit chooses the cluster "
        "where the job starts first. With diloco.across, give the names of the two clusters that train together."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one key of the job, such as resources.nodes=4; repeatable.",
        autocompletion=completion_candidates.job_keys,
    ),
]


Point = Annotated[
    int | None,
    typer.Option(
        "--point", metavar="N", min=0, help="One point of the job's sweep, by its number in 'kit sweep --dry-run'."
    ),
]
Base = Annotated[bool, typer.Option("--base", help="The job without its sweep.")]


def _after(kinds: str, more: str = "Repeatable.") -> Any:
    return typer.Option(
        "--after",
        metavar=f"RUN[:{kinds}]",
        help="Start after another run, chain or sweep has ended. ok, the default: only if it succeeded. notok: only if it failed. "
        f"any: in either case. {more}",
        autocompletion=completion_candidates.runs_and_sweeps,
    )


After = Annotated[list[str] | None, _after("ok|any|notok")]
AfterPoints = Annotated[
    list[str] | None,
    _after(
        "ok|any|notok|corr",
        "corr, for a sweep: each point starts after the point with the same number has succeeded. Repeatable, except with corr.",
    ),
]
Containers = Annotated[
    bool,
    typer.Option(
        "--container/--no-container", help="Run in the job's image, or directly on the nodes without a container."
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the run has ended, then exit with the run's exit code.")]
Follow = Annotated[
    bool,
    typer.Option("--follow", "-f", help="Print the logs until the run has ended, then exit with the run's exit code."),
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes",
        "-y",
        help="Start the embedded cluster and build missing images without a question, if the job needs them.",
    ),
]
