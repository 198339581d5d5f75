"""The nouns of the kit as frozen models: Job, Cluster, Mount, Image, Launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel


def models() -> dict[str, type[BaseModel]]:
    """The model of each TOML file, by the name that its schema has."""
    from kit.spec.cluster import Cluster
    from kit.spec.image import ImageSpec
    from kit.spec.job import Job
    from kit.spec.launcher import Launcher
    from kit.spec.lookup_table import Table
    from kit.spec.mount import MountSet

    return {
        "job": Job,
        "cluster": Cluster,
        "mounts": MountSet,
        "launcher": Launcher,
        "image": ImageSpec,
        "table": Table,
    }


def schemas() -> dict[str, type[BaseModel]]:
    """All that `kit schema` prints: beside the TOML files a line of metrics.jsonl, and what `kit diff --json` prints."""
    from kit.spec.comparison import Comparison
    from kit.spec.metrics import MetricsRecord

    return {**models(), "metrics": MetricsRecord, "comparison": Comparison}
