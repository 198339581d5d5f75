"""How many tasks an array may have."""

from __future__ import annotations

from collections.abc import Sequence

from kit.runs.submit import Prepared
from kit.slurm import client


def max_array(runs: Sequence[Prepared]) -> int:
    """The smallest of what the cluster's file, the QOS rows in use and, where it can be asked, the controller allow."""
    cluster = runs[0].resolved.cluster
    rows = [cluster.qos[name] for name in {run.resolved.job.qos for run in runs} if name in cluster.qos]
    limits = [cluster.max_array, client.max_array_size(env=runs[0].env), *(row.max_array for row in rows)]
    return min(limit for limit in limits if limit is not None)
