"""kit nodes."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def nodes(
    forget: Annotated[
        str | None, typer.Option("--forget", metavar="NODE", help="Let jobs run on this node again.")
    ] = None,
    cluster: Annotated[str, typer.Option("--cluster", "-c", help="A name of clusters/.")] = "local",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the nodes that failed a preflight within the last day; new jobs are kept off them."""
    from kit import config, data_folders
    from kit.runs import avoid, registry
    from kit.spec.cluster import Cluster

    project = data_folders.project()
    entry = data_folders.find("clusters", cluster, project_dir=project, asked_by="--cluster", key="cluster")
    folder = registry.folder_of(config.load_model(entry.path, Cluster), project)
    if forget is not None:
        avoid.forget(folder, forget)
        return
    found = avoid.read(folder)
    if as_json:
        print(json.dumps([{"node": n.node, "since": n.since.isoformat(), "reason": n.reason} for n in found], indent=2))
        return
    for one in found:
        print(f"{one.node}  since {one.since:%Y-%m-%d %H:%M} UTC: {one.reason}")
