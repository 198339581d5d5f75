"""Options that the commands for images share, and the store that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli import completion_candidates

if TYPE_CHECKING:
    from kit.schema.cluster import Cluster

Name = Annotated[
    str,
    typer.Argument(
        help="Name of the image: a folder in containers/.",
        show_default=False,
        autocompletion=completion_candidates.images,
    ),
]
Store = Annotated[
    Path | None,
    typer.Option("--store", help="Folder of the image store.", show_default="the cluster's store"),
]
OfCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", "-c", help="Use the image store of this cluster.", autocompletion=completion_candidates.clusters
    ),
]


def store_of(given: Path | None, cluster: str | None = None) -> Path:
    """The store that the option names, else the store of the named or default cluster, as in `kit submit`."""
    from kit import data_folders
    from kit.record import find_runs

    if given:
        return given.absolute()
    rules = cluster_of(cluster)
    # An image for a cluster over ssh is made here first.
    return data_folders.image_store() if rules.ssh else find_runs.store_of(rules, data_folders.project())


def cluster_of(name: str | None) -> Cluster:
    """The rules of the named or default cluster."""
    from kit import config, data_folders
    from kit.schema.cluster import Cluster

    return config.load_model(config.cluster_entry(name, data_folders.project()).path, Cluster)
