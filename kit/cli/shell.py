"""kit shell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kit.cli import completion
from kit.cli.jobs import ClusterName, Containers, JobFile, Overrides


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
            help="Go to a node of a running job instead of a new allocation.",
            autocompletion=completion.runs,
        ),
    ] = None,
    node: Annotated[str | None, typer.Option("--node", help="With --attach: which node. [default: the first]")] = None,
) -> None:
    """Open a shell in the job's container, with its mounts and its environment."""
    from kit import config
    from kit.cli import runs
    from kit.runs import interactive, queues
    from kit.runs.submit import prepare

    if attach is not None:
        one = runs.find(attach)
        raise typer.Exit(interactive.attach(one, node=node, env=queues.env_of(one.manifest.cluster)))
    raise typer.Exit(
        interactive.allocate(
            # In the job's folder itself: a shell is where one edits.
            prepare(
                config.job_path(job),
                cluster=cluster,
                overrides=[*(set_ or []), "snapshot=false"],
                containers=containers,
            )
        )
    )
