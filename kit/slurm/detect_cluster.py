"""Makes a first cluster file from the output of `sinfo` and `scontrol show` on the current cluster."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kit.errors import SlurmError, ToolError
from kit.slurm import client, tolerant_reader
from kit.slurm.short_forms import count_gpus
from kit.slurm.tolerant_reader import MARK, ask, is_number

_TIMEOUT_S = 30.0
_UNLIMITED = {"UNLIMITED", "INFINITE", "NONE", "N/A"}
# RealMemory is 1 MB if nobody configured it.
_UNSET_MEMORY_MB = 1


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """The resources of one node in Slurm. memory_mb: its RealMemory, in MB."""

    cpus: int
    memory_mb: int
    gpus: int


def detect(*, env: Mapping[str, str]) -> dict[str, Any]:
    """The tables of a cluster file. SlurmError when no Slurm answers."""
    try:
        config = _fields(ask(["scontrol", "show", "config"], env=env, timeout=_TIMEOUT_S))
        shown = ask(["scontrol", "show", "partition", "--oneliner"], env=env, timeout=_TIMEOUT_S)
        listed = ask(["sinfo", "--noheader", "--Node", f"--format={MARK}%R|%c|%m|%G"], env=env, timeout=_TIMEOUT_S)
    except ToolError as error:
        said = error.message
        if any(words in said for words in client.NO_CONTROLLER):
            said = f"this machine's Slurm cannot be reached: {said.splitlines()[-1].strip()}"
        raise SlurmError(said, hint="run it on a login node, where Slurm's commands answer") from None
    partitions = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in shown.splitlines()]
    partitions = [one for one in partitions if "PartitionName" in one]
    default = next((p for p in partitions if p.get("Default") == "YES"), partitions[0] if partitions else None)
    if default is None:
        raise SlurmError("Slurm has no partition", hint="scontrol show partition")
    node = _commonest(listed, default["PartitionName"])
    return {
        "description": f"Slurm cluster {config.get('ClusterName', 'without a name')}",
        "max_array": int(config.get("MaxArraySize", "1001")),
        "default_qos": row_name(default["PartitionName"]),
        "node": {"cpus": node.cpus, "gpus": node.gpus, **_memory(node)},
        **({"expedited_requeue": True} if "enable_expedited_requeue" in config.get("SlurmctldParameters", "") else {}),
        "container": {"runtime": "pyxis" if client.has_pyxis(env=env) else "auto", **task_prolog(config)},
        "qos": {row_name(p["PartitionName"]): row_of(p) for p in partitions},
    }


def _fields(text: str) -> dict[str, str]:
    """Parse `scontrol show config` as name -> value."""
    return dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", text, re.MULTILINE))


def task_prolog(config: Mapping[str, str]) -> dict[str, str]:
    """The site's TaskProlog as a key of [container]; empty if there is none."""
    path = config.get("TaskProlog", "")
    return {"task_prolog": path} if path.startswith("/") else {}


def _commonest(listed: str, partition: str) -> _Shape:
    """The most common node shape in a partition. Of equally common ones, the one with more GPUs."""
    rows = [row for row in tolerant_reader.rows(listed, 4) if is_number(row[1]) and is_number(row[2])]
    mine = [row for row in rows if row[0] == partition] or rows
    if not mine:
        raise SlurmError("Slurm has no node", hint="sinfo --Node")
    shapes = Counter(_Shape(cpus=int(c), memory_mb=int(m), gpus=count_gpus(g)) for _, c, m, g in mine)
    return max(shapes, key=lambda shape: (shapes[shape], shape.gpus))


def _memory(node: _Shape) -> dict[str, str]:
    return {"memory": f"{node.memory_mb}M"} if node.memory_mb > _UNSET_MEMORY_MB else {}


def row_name(partition: str) -> str:
    """A partition's name as a name for the kit: lower case, other characters replaced by dashes."""
    return re.sub(r"[^a-z0-9._-]+", "-", partition.lower()).strip("-._") or "partition"


def row_of(partition: Mapping[str, str]) -> dict[str, Any]:
    """A partition as a row of the QOS table. It sets no QOS: these commands do not show which one a user may have."""
    row: dict[str, Any] = {"partition": partition["PartitionName"], "qos": False}
    if partition.get("MaxTime", "UNLIMITED") not in _UNLIMITED:
        row["time"] = partition["MaxTime"]
    if partition.get("MaxNodes", "UNLIMITED") not in _UNLIMITED:
        row["max_nodes"] = int(partition["MaxNodes"])
    return row
