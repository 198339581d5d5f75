"""cluster_info and images."""

from __future__ import annotations

import time
from typing import Any

from kit import config, data_folders
from kit.errors import ConfigError, UsageError
from kit.hosts.clusters import find_host
from kit.images import store_contents
from kit.mcp import as_data, spending
from kit.mcp.session import AgentSession
from kit.record import find_runs
from kit.schema.cluster import Cluster


def cluster_info(session: AgentSession, *, name: str | None) -> dict[str, Any]:
    """The clusters of the project, their nodes and QOS rows; the user's limits, and what was spent."""
    names = [name] if name else data_folders.names("clusters", project_dir=session.project)
    clusters = {one: _cluster(session, one) for one in names}
    try:
        limits: object = session.limits().model_dump(mode="json")
    except (ConfigError, UsageError) as error:
        limits = as_data.error(error)
    spent = spending.totals(session.ledger.entries(), now=time.time())
    return as_data.marked(clusters, limits=limits, limits_file=str(session.limits_file), spent=spent)


def _cluster(session: AgentSession, name: str) -> dict[str, Any]:
    entry = data_folders.find("clusters", name, project_dir=session.project)
    try:
        cluster = config.load_model(entry.path, Cluster)
    except ConfigError as error:
        return as_data.error(error)
    return {
        "description": cluster.description,
        "node": cluster.node.model_dump(mode="json"),
        "qos": {row: one.model_dump(mode="json", exclude_none=True) for row, one in cluster.qos.items()},
        "default_qos": cluster.default_qos,
        "runtime": cluster.container.runtime,
        "over_ssh": cluster.ssh is not None,
        "up": find_host(name).is_up(),
    }


def images(session: AgentSession, *, cluster: str | None) -> dict[str, Any]:
    """The images with a lock or a file in the store, and whether they are there."""
    store = data_folders.image_store()
    if cluster:
        entry = data_folders.find("clusters", cluster, project_dir=session.project)
        store = find_runs.store_of(config.load_model(entry.path, Cluster), session.project)
    rows = store_contents.rows(store, session.project)
    return as_data.marked(
        [
            {
                "name": row.name,
                "digest": f"sha256:{row.sha256}",
                "bytes": row.size,
                "present": row.present,
                "locked": bool(row.locks),
            }
            for row in rows
        ]
    )
