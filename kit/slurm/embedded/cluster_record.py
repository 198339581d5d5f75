"""The record of an embedded cluster. Reading it starts no process and does not ask Slurm."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from kit.errors import SlurmError
from kit.files import untrusted_files
from kit.schema.schema_base import Model
from kit.slurm.embedded.paths import EmbeddedPaths


class ClusterSize(Model):
    """The size that a user asks for."""

    nodes: Annotated[int, Field(ge=1, le=1000)] = 2
    # None: the machine's GPUs, divided among the nodes; four placeholders per node if it has no GPU.
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] | None = None
    # None: the machine's CPUs, but at least eight. A node may claim more CPUs than there are (config_overrides).
    cpus_per_node: Annotated[int, Field(ge=1, le=1024)] | None = None
    placeholder_gpus: bool = False
    # Lines of slurm.conf, checked by `settings.checked`.
    conf: dict[str, str] = Field(default_factory=dict)
    accounting: bool = False
    cgroups: bool = False


class ProcessId(Model):
    """The unique identity of a process: a pid alone may be reused later. start is in clock ticks since boot."""

    pid: int
    start: int


class VirtualNode(Model):
    """One virtual node. gpus: device files. init: the first process of its namespaces; None without isolation."""

    name: str
    address: str
    port: int
    gpus: tuple[Path, ...]
    init: ProcessId | None = None


class Accounting(Model):
    """The port of slurmdbd on the controller's address, and the port of its database on this machine."""

    port: int
    database_port: int


class EmbeddedCluster(Model):
    """An embedded cluster, as recorded in its folder."""

    name: str
    folder: Path
    # It stays `starting` until every node was idle. A record with `starting` and no running `up` is left from an interrupted start.
    phase: Literal["starting", "up"]
    boot_id: str
    cpus_per_node: int
    gpus_per_node: int
    memory_mb: int
    controller_host: str
    controller_address: str
    controller_port: int
    subnet: str | None
    nodes: tuple[VirtualNode, ...]
    pyxis: Path | None
    conf: dict[str, str] = Field(default_factory=dict)
    accounting: Accounting | None = None
    cgroups: bool = False
    daemons: dict[str, ProcessId] = Field(default_factory=dict)

    @property
    def layout(self) -> EmbeddedPaths:
        """Its paths."""
        return EmbeddedPaths(self.folder)

    @property
    def slurm_conf(self) -> Path:
        """Its slurm.conf."""
        return self.layout.slurm_conf

    @property
    def has_pyxis(self) -> bool:
        """Whether `srun --container-image` works on this cluster."""
        return self.pyxis is not None

    @property
    def isolated(self) -> bool:
        """Whether each node has its own network, host name, processes and mounts."""
        return self.subnet is not None

    @property
    def has_placeholders(self) -> bool:
        """Whether its GPUs are placeholders."""
        return any(path.parent == self.layout.gpus for node in self.nodes for path in node.gpus)

    @property
    def shape(self) -> str:
        """The shape in words, for messages and for comparison with the requested one."""
        plugin = f"Pyxis {self.pyxis}" if self.pyxis else "no Pyxis"
        kind = "placeholder GPUs" if self.has_placeholders else "GPUs"
        conf = "".join(f", {key}={value}" for key, value in sorted(self.conf.items()))
        size = f"{len(self.nodes)} nodes with {self.cpus_per_node} CPUs and {self.gpus_per_node} {kind} each"
        extra = f"{', accounting' if self.accounting else ''}{', cgroups' if self.cgroups else ''}"
        return f"{size}, {plugin}{extra}{conf}"

    def env(self) -> dict[str, str]:
        """The environment variables that every Slurm command needs to talk to this cluster."""
        return {"SLURM_CONF": str(self.slurm_conf)}

    def node(self, name: str) -> VirtualNode:
        """The node called `name`; SlurmError when there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise SlurmError(f"cluster {self.name}: no node {name!r}; it has {', '.join(n.name for n in self.nodes)}")

    def node_exec_argv(self, node: str) -> list[str]:
        """The start of an argv that runs a program inside a node's namespaces, as root: `[*argv, "ip", "link"]`.

        It does not use `ip netns exec`, which mounts another /sys (docs/internals/learnt.md#several-nodes-on-one-machine).
        """
        init = self.node(node).init
        if init is None:
            raise SlurmError(
                f"cluster {self.name}: its nodes have no namespaces of their own",
                hint="start the cluster as root, on a machine that allows network and PID namespaces",
            )
        return ["nsenter", f"--target={init.pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--"]

    def save(self) -> None:
        """Write the record atomically."""
        self.layout.unfinished_record.write_text(self.model_dump_json(indent=2) + "\n")
        self.layout.unfinished_record.replace(self.layout.record)

    @classmethod
    def load(cls, layout: EmbeddedPaths) -> EmbeddedCluster | None:
        """The recorded cluster; None if the folder has none, or one written by another version of the kit."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValidationError):
            return cls.model_validate_json(untrusted_files.read_bytes(layout.record))
        return None


def machine_memory_mb() -> int:
    """The machine's memory in MiB, Slurm's unit."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
