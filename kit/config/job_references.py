"""Resolves names in a job: a row of the QOS table, a batch template, mounts of a mount set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kit import data_folders
from kit.config.toml_file import Table, load_model, reason, shown
from kit.errors import ConfigError, Fault, did_you_mean, nearest
from kit.files import untrusted_files
from kit.schema.cluster import Cluster, QosRow
from kit.schema.job import Job
from kit.schema.mount import Mount, MountSet
from kit.schema.wrong_value_messages import shown as shown_value
from kit.validation import COMMAND_LINE, toml

# data_folders.find in one project: kind, name, the file that asks, its key.
Find = Callable[[str, str, str, str], data_folders.Entry]


def qos_layer(cluster: Cluster, written: Table, above: Table, asked_by: str) -> Table:
    """The job keys that the chosen row of the QOS table sets. asked_by: the file that a fault in its name refers to."""
    name = above.get("qos", written.get("qos", cluster.defaults.get("qos", cluster.default_qos)))
    if name is None:
        return {}
    if not isinstance(name, str) or name not in cluster.qos:
        raise ConfigError.of(_no_such_qos(cluster, name, asked_by))
    row: QosRow = cluster.qos[name]
    slurm = {"account": row.account, "partition": row.partition, "qos": None if row.qos is False else row.qos or name}
    resources_ = {"memory": row.memory, "cpus_per_node": row.cpus_per_node, "time": row.time}
    return {
        "qos": name,
        "slurm": {k: v for k, v in slurm.items() if v is not None},
        "resources": {k: v for k, v in resources_.items() if v is not None},
    }


def _no_such_qos(cluster: Cluster, name: object, asked_by: str) -> Fault:
    if not cluster.qos:
        return Fault(file=asked_by, key="qos", problem="the cluster has no QOS table", hint="remove the line")
    near = nearest(str(name), cluster.qos) or next(iter(cluster.qos))
    question = did_you_mean(str(name), cluster.qos)
    return Fault(
        file=asked_by,
        key="qos",
        problem=f"the cluster's QOS table has no row {shown_value(name)}" + (f"; {question}" if question else ""),
        allowed=", ".join(cluster.qos),
        hint=f"{COMMAND_LINE} qos={near}" if asked_by == COMMAND_LINE else f"qos = {toml(near)}",
    )


def template(job: Job, job_dir: Path, job_file: str) -> tuple[str, str] | None:
    """The user's batch template: its name in errors, its contents; None if the job has none."""
    if job.slurm.template is None:
        return None
    path = job_dir / Path(job.slurm.template).expanduser()
    try:
        return shown(path), untrusted_files.read_bytes(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"the batch template {shown_value(job.slurm.template)} cannot be read: {reason(error)}"
        hint = f"kit template eject {job.slurm.template}, which writes the kit's own to start from"
        raise ConfigError.of(Fault(file=job_file, key="slurm.template", problem=problem, hint=hint)) from None


def mounts(job: Job, cluster: Cluster, find: Find, job_file: str, cluster_file: str) -> tuple[Mount, ...]:
    """The job's mounts, with every logical name looked up in the mount set."""
    logical = [m for m in job.mounts if isinstance(m, str)]
    known: dict[str, Mount] = {}
    set_name = job.mount_set or cluster.mounts
    if set_name is not None:
        asked_by, key = (job_file, "mount_set") if job.mount_set else (cluster_file, "mounts")
        entry = find("mounts", set_name, asked_by, key)
        known = load_model(entry.path, MountSet).root
    unknown = [
        Fault(
            file=job_file,
            key=f"mounts[{job.mounts.index(name)}]",
            problem=f"no mount is called {name!r}"
            if set_name
            else "this name is looked up in the mount set of the cluster, and the cluster has none",
            allowed=", ".join(known),
            hint=f"add [{name}] to mounts/{set_name}.toml"
            if set_name
            else f'mounts = [{{ source = "/data", target = "/{name}" }}]',
        )
        for name in logical
        if name not in known
    ]
    if unknown:
        raise ConfigError.of(*unknown)
    return tuple(known[m] if isinstance(m, str) else m for m in job.mounts)
