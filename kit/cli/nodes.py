"""kit nodes."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from kit.cli.jobs import ClusterName


def nodes(
    forget: Annotated[
        str | None, typer.Option("--forget", metavar="NODE", help="Let jobs run on this node again.")
    ] = None,
    cluster: ClusterName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the nodes that failed a preflight within the last day; new jobs are kept off them."""
    from kit import config, data_folders
    from kit.cli.table import Column, show
    from kit.runs import avoid, registry
    from kit.spec.cluster import Cluster

    project = data_folders.project()
    entry = config.cluster_entry(cluster, project)
    folder = registry.folder_of(config.load_model(entry.path, Cluster), project)
    if forget is not None:
        avoid.forget(folder, forget)
        return
    found = avoid.read(folder)
    if as_json:
        print(json.dumps([{"node": n.node, "since": n.since.isoformat(), "reason": n.reason} for n in found], indent=2))
        return
    if found:
        columns = (Column("node"), Column("since (UTC)", 1), Column("reason"))
        show(columns, [(one.node, f"{one.since:%Y-%m-%d %H:%M}", one.reason) for one in found])
