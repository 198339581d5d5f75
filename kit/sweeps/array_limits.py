"""Limits the number of tasks of an array."""

from __future__ import annotations

from collections.abc import Iterable

from kit.slurm import client
from kit.submission.prepare_run import Prepared


def max_array(first: Prepared, used: Iterable[str | None]) -> int:
    """The smallest limit of the cluster's file, the QOS rows in use, and the controller if it can be asked.

    first: any point of the sweep. used: the names of the rows.
    """
    cluster = first.resolved.cluster
    rows = [cluster.qos[name] for name in set(used) if name in cluster.qos]
    limits = [cluster.max_array, client.max_array_size(env=first.env), *(row.max_array for row in rows)]
    return min(limit for limit in limits if limit is not None)
