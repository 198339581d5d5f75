"""kit migrate: an sbatch script as a job file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kit.cli.job_options import ClusterName
from kit.cli.json_options import Json
from kit.cli.print_json import print_json


def migrate(
    script: Annotated[Path, typer.Argument(help="The sbatch script. It is read, and never run.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The folder for job.toml, cluster.toml and migrated.txt.",
            show_default="the script's",
        ),
    ] = None,
    cluster: ClusterName = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite an existing job.toml, cluster.toml and migrated.txt.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a job file and a cluster file that do what an sbatch script does, and a report with the place of each of its lines."""
    from kit.migrate import write_job

    report = write_job.migrate(script, output=output, cluster=cluster, force=force)
    if as_json:
        print_json("migrate", report.as_json())
    else:
        print(report.as_text(), end="")
    write_job.check(report)
