"""kit shell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kit.cli import completion_candidates
from kit.cli.job_options import ClusterName, Containers, JobFile, Overrides


def shell(
    job: JobFile = Path("job.toml"),
    cluster: ClusterName = None,
    containers: Containers = True,
    set_: Overrides = None,
    attach: Annotated[
        str | None,
        typer.Option(
            "--attach",
            metavar="RUN",
            help="Open the shell on a node of this running job, not in a new allocation.",
            autocompletion=completion_candidates.runs,
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option("--node", help="With --attach: the node on which the shell opens; default: the first node."),
    ] = None,
) -> None:
    """Open a shell in the job's container, with the job's mounts and environment."""
    from kit import config, data_folders
    from kit.cli import runs
    from kit.cli.submit_messages import show_arguments
    from kit.config.program_arguments import with_keys
    from kit.hosts import clusters
    from kit.submission import interactive
    from kit.submission.prepare_run import prepare_job

    if attach is not None:
        one = runs.find(attach)
        raise typer.Exit(interactive.attach(one, node=node))
    # Use the job's folder itself, because the user edits there. A cluster over ssh does not have it, and gets a copy.
    live = (
        [] if clusters.find_ssh_host(config.cluster_entry(cluster, data_folders.project()).name) else ["snapshot=false"]
    )
    ready = prepare_job(
        config.job_path(job), cluster=cluster, overrides=with_keys(set_ or [], live), containers=containers
    )
    show_arguments([ready])
    raise typer.Exit(interactive.allocate(ready))
