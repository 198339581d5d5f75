"""Pydantic models (frozen) of the TOML files: Job, Cluster, Mount, Image, Launcher, Table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel


def models() -> dict[str, type[BaseModel]]:
    """The model of each TOML file, by the name of its schema."""
    from kit.schema.cluster import Cluster
    from kit.schema.image import ImageSpec
    from kit.schema.job import Job
    from kit.schema.launcher import Launcher
    from kit.schema.lookup_table import Table
    from kit.schema.mount import MountSet

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
    from kit.schema.comparison import Comparison
    from kit.schema.metrics import MetricsRecord

    return {**models(), "metrics": MetricsRecord, "comparison": Comparison}
