"""TOML files and `--set a.b=c` become one Job.

One precedence rule: command line > job > QOS row > cluster > launcher > defaults.

| module | what it does |
|---|---|
| `toml_file` | one TOML file: its text, its table, its model |
| `extends` | job files that build on each other |
| `layers` | `--set`, and layers of keys as one Job |
| `program_arguments` | words after `--`: options of the program, by name |
| `references` | what a job names: QOS row, batch template, mounts |
| `job_reading` | a job file and its cluster, read once; the job that they make |
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit.config.extends import job_files
    from kit.config.job_reading import (
        Resolved,
        Sources,
        cluster_entry,
        default_cluster,
        job_of,
        job_path,
        load_job,
        read_job,
    )
    from kit.config.layers import Layer, merge, merge_all, parse_overrides
    from kit.config.toml_file import Table, load_model, load_toml, reason, shown, validate

# Each name and its module, which is imported when the name is first used. Reading a cluster's file does not need Job.
_PLACES = {
    "Layer": "layers",
    "Resolved": "job_reading",
    "Sources": "job_reading",
    "Table": "toml_file",
    "cluster_entry": "job_reading",
    "default_cluster": "job_reading",
    "job_files": "extends",
    "job_of": "job_reading",
    "job_path": "job_reading",
    "load_job": "job_reading",
    "load_model": "toml_file",
    "load_toml": "toml_file",
    "merge": "layers",
    "merge_all": "layers",
    "parse_overrides": "layers",
    "read_job": "job_reading",
    "reason": "toml_file",
    "shown": "toml_file",
    "validate": "toml_file",
}
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


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'kit.config' has no attribute {name!r}")
    return getattr(import_module(f"kit.config.{_PLACES[name]}"), name)
