"""Finds an embedded cluster's folder and record. It does not load the code that starts and stops clusters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kit import data_folders
from kit.errors import UsageError
from kit.slurm.embedded.paths import EmbeddedPaths, checked_name, node_names

if TYPE_CHECKING:
    from kit.slurm.embedded.cluster_record import EmbeddedCluster


def default_folder(name: str) -> Path:
    """The default folder of a cluster."""
    return data_folders.user_data() / "clusters" / name


def find(name: str = "local", *, folder: Path | None = None) -> EmbeddedCluster | None:
    """The recorded cluster, if it was up when it was last recorded. Slurm is not asked, and no process is checked."""
    try:
        layout = layout_of(name, folder)
    except UsageError:
        # No cluster can be started under this name, so none is up. A listing of runs must not fail over a name in one of them.
        return None
    from kit.slurm.embedded.cluster_record import EmbeddedCluster

    cluster = EmbeddedCluster.load(layout)
    return cluster if cluster and cluster.phase == "up" and cluster.boot_id == this_boot() else None


def layout_of(name: str, folder: Path | None) -> EmbeddedPaths:
    """The paths of a cluster, short enough for Slurm's sockets. UsageError if they are too long."""
    longest = node_names(checked_name(name), 1)[-1]
    return EmbeddedPaths.check_folder(folder or default_folder(name), node=longest)


def this_boot() -> str:
    """The kernel's id of this boot: pids recorded under another one mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
