"""Finds an embedded cluster's folder and record. Every command looks here, without the code that starts and stops clusters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kit import data_folders
from kit.errors import UsageError
from kit.slurm.embedded.paths import Layout, checked_name, node_names

if TYPE_CHECKING:
    from kit.slurm.embedded.cluster_record import EmbeddedCluster


def default_folder(name: str) -> Path:
    """Where a cluster lives unless told otherwise."""
    return data_folders.user_data() / "clusters" / name


def find(name: str = "local", *, folder: Path | None = None) -> EmbeddedCluster | None:
    """The cluster as recorded, if it was up when last seen; nothing is asked of Slurm and no process is looked at."""
    try:
        layout = layout_of(name, folder)
    except UsageError:
        # Where no cluster could be started, none is up: a listing of runs must not fail over a name in one of them.
        return None
    from kit.slurm.embedded.cluster_record import EmbeddedCluster

    cluster = EmbeddedCluster.load(layout)
    return cluster if cluster and cluster.phase == "up" and cluster.boot_id == this_boot() else None


def layout_of(name: str, folder: Path | None) -> Layout:
    """The paths of a cluster, each short enough for Slurm's sockets. UsageError where they would not be."""
    longest = node_names(checked_name(name), 1)[-1]
    return Layout.of(folder or default_folder(name), node=longest)


def this_boot() -> str:
    """The kernel's id of this boot: pids recorded under another one mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
