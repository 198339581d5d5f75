"""The nouns of the kit as frozen models: Job, Cluster, Mount, Image, Launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel


def models() -> dict[str, type[BaseModel]]:
    """The model of each TOML file, by the name of its schema."""
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
    """All schemas that `kit schema` prints: of the TOML files, of a line of metrics.jsonl, and of the output of
    `kit diff --json`.
    """
    from kit.spec.comparison import Comparison
    from kit.spec.metrics import MetricsRecord

    return {**models(), "metrics": MetricsRecord, "comparison": Comparison}
