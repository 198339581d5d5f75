"""Arguments and options that several commands about a job have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from kit.cli import completion_candidates
from kit.cli.typer_later import typer

JobFile = Annotated[
    Path, typer.Argument(metavar="[JOB]", help="Job file, or the folder that holds job.toml.", show_default="job.toml")
]


def _cluster(named: str) -> Any:
    return typer.Option(
        "--cluster",
        "-c",
        help=named,
        show_default="KIT_CLUSTER, the user's, the only one of the project; or local",
        autocompletion=completion_candidates.clusters,
    )


ClusterName = Annotated[str | None, _cluster("A name of clusters/.")]
ClusterChoice = Annotated[
    str | None,
    _cluster(
        "A name of clusters/. 'any', or several names with commas: the one where the job starts first; "
        "with diloco.across, the two that train together."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one key of the job, such as resources.nodes=4.",
        autocompletion=completion_candidates.job_keys,
    ),
]
After = Annotated[
    list[str] | None,
    typer.Option(
        "--after",
        metavar="RUN[:ok|any|notok]",
        help="Start after another run, chain or sweep ends with the given status.",
        autocompletion=completion_candidates.runs_and_sweeps,
    ),
]
Containers = Annotated[
    bool, typer.Option("--container/--no-container", help="Run in the job's image, or on the nodes as they are.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end; exit with the run's own code.")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Show the logs as they come; exit with the run's own code.")
]
ManifestJson = Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")]
