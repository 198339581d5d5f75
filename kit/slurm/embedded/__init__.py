"""The embedded cluster: a real Slurm (slurmctld, several slurmd, munged) on this machine, with its state in one folder.

    from kit.slurm.embedded import ClusterSize, down, find, up
    cluster = up("local", ClusterSize(nodes=2, gpus_per_node=4))
    shell.run(["srun", "-N2", "hostname"], env={**os.environ, **cluster.env()})
    down("local")

| module | does |
|---|---|
| `cluster_record` | the record of a cluster: `EmbeddedCluster`, `VirtualNode`, `ClusterSize` |
| `paths` | every path and name |
| `free_addresses` | free ports, a free subnet |
| `gpus`, `pyxis` | the GPU devices of each node; whether the container plugin can be loaded |
| `conf` | the text of slurm.conf and its companions; pure |
| `settings` | keys of slurm.conf that `--conf` may set |
| `process` | finds and ends processes without trusting a name or a bare pid |
| `nodes` | the namespaces and the network of virtual nodes |
| `node_links` | bytes sent over the nodes' links, and limits of their speed |
| `daemons` | munged, slurmctld, slurmd |
| `accounting` | slurmdbd with a MariaDB, an account, the user and QOS |
| `cgroup_support` | whether `--cgroups` works on this machine; removes cgroups |
| `find_cluster` | the record of a cluster, without loading the other modules |
| `lifecycle`, `teardown`, `lock` | up, down, status |
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit.slurm.embedded.cluster_record import ClusterSize, EmbeddedCluster, VirtualNode
    from kit.slurm.embedded.find_cluster import default_folder, find
    from kit.slurm.embedded.lifecycle import ClusterStatus, down, status, up

__all__ = [
    "ClusterSize",
    "ClusterStatus",
    "EmbeddedCluster",
    "VirtualNode",
    "default_folder",
    "down",
    "find",
    "status",
    "up",
]
# Where a name is, but for those of lifecycle: each is imported when it is first used.
_PLACES = {
    "ClusterSize": "cluster_record",
    "EmbeddedCluster": "cluster_record",
    "VirtualNode": "cluster_record",
    "default_folder": "find_cluster",
    "find": "find_cluster",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"kit.slurm.embedded.{_PLACES.get(name, 'lifecycle')}"), name)
