"""TOML files and `--set a.b=c` become one Job.

One precedence rule: command line > job > QOS row > cluster > launcher > defaults.

| module | what it does |
|---|---|
| `toml_file` | one TOML file: its text, its table, its model |
| `extends` | job files that build on each other |
| `layers` | `--set`, and layers of keys as one Job |
| `lookups` | what a job names: QOS row, batch template, mounts |
| `sources` | a job file and its cluster, read once; the job that they make |
"""

from __future__ import annotations

from kit.config.extends import job_files
from kit.config.layers import Layer, merge, merge_all, parse_overrides
from kit.config.sources import (
    Resolved,
    Sources,
    cluster_entry,
    default_cluster,
    job_of,
    job_path,
    load_job,
    read_job,
)
from kit.config.toml_file import Table, load_model, load_toml, reason, shown, validate

__all__ = [
    "Layer",
    "Resolved",
    "Sources",
    "Table",
    "cluster_entry",
    "default_cluster",
    "job_files",
    "job_of",
    "job_path",
    "load_job",
    "load_model",
    "load_toml",
    "merge",
    "merge_all",
    "parse_overrides",
    "read_job",
    "reason",
    "shown",
    "validate",
]
