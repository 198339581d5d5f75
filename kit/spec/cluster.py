"""Cluster: where a job runs. `clusters/<name>.toml`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from kit.errors import nearest
from kit.spec.schema_base import (
    EnvName,
    ImageStage,
    Memory,
    Model,
    Name,
    RuntimeName,
    SbatchWord,
    Text,
    TimeLimit,
    interfaces,
)
from kit.spec.wrong_value_messages import Form, Invalid, shown

GresForm = Annotated[
    str,
    Form(
        pattern=r"(gpus-per-node|none|gres:[a-z0-9_]+(:[A-Za-z0-9_.-]+)?)",
        what="a way to ask for GPUs",
        how="gpus-per-node, none, or gres: with the name in gres.conf and perhaps a type",
        example="gres:gpu:h100",
        nearest=lambda text: f"gres:{text}",
    ),
]


def _ports(value: str) -> str:
    first, _, last = value.partition("-")
    if not 1 <= int(first) <= int(last or first) <= 65535:
        raise Invalid(
            f"{shown(value)} is not a range of ports from 1 to 65535, the lower one first", write="29600-29699"
        )
    return value


PortRange = Annotated[
    str,
    Form(
        pattern=r"[0-9]{1,5}(-[0-9]{1,5})?",
        what="a range of ports",
        how="the first and the last with - between them, or one",
        example="29600-29699",
    ),
    AfterValidator(_ports),
]


class NodeShape(Model):
    """The resources of one node of the cluster."""

    cpus: int = Field(ge=1, description="CPUs that jobs may use.")
    gpus: int = Field(default=0, ge=0, description="GPUs; 0 for a CPU cluster.")
    memory: Memory | None = Field(default=None, description="Memory that jobs may use.")
    gpu_memory: Memory | None = Field(default=None, description="Memory of one GPU: `kit submit` says what fits.")
    gres: GresForm = Field(
        default="gpus-per-node",
        description="How GPUs are asked for: 'gpus-per-node', 'gres:gpu', 'gres:gpu:h100', or 'none'.",
    )


class QosRow(Model):
    """One row of the QOS table: the values and limits of a job with this QOS."""

    account: SbatchWord | None = Field(default=None, description="Account that jobs are charged to (sbatch --account).")
    partition: SbatchWord | None = Field(default=None, description="Slurm's partition (sbatch --partition).")
    qos: SbatchWord | Literal[False] | None = Field(
        default=None, description="Slurm's QOS; default: the row's own name. false: none is asked for."
    )
    memory: Memory | None = Field(default=None, description="Most memory of a node; also the default.")
    cpus_per_node: int | None = Field(default=None, ge=1, description="Most CPUs of a node; also the default.")
    time: TimeLimit | None = Field(default=None, description="Longest time limit; also the default.")
    max_nodes: int | None = Field(default=None, ge=1, description="Most nodes of one job.")
    max_gpus_per_node: int | None = Field(default=None, ge=0, description="Most GPUs of one job on a node.")
    max_array: int | None = Field(default=None, ge=1, description="Most tasks of one array.")


class ContainerRules(Model):
    """The cluster's container runtime and its abilities."""

    runtime: RuntimeName = Field(default="auto", description="auto: pyxis where the cluster has it, else bubblewrap.")
    pyxis_unpacks: bool | None = Field(
        default=None,
        description="Whether Pyxis unpacks images instead of mounting them; default: what the nodes' plugstack.conf says.",
    )
    stage: ImageStage = Field(
        default="shared",
        description="How a job's image reaches the nodes, unless the job says it: its key image.stage explains the values.",
    )


class Paths(Model):
    """Folders that every node sees. May hold {project} {user} {home} {data}."""

    runs: str = Field(default="{project}/runs", description="Where run folders are made.")
    store: str | None = Field(
        default=None, description="The image store, shared by all nodes; default: KIT_STORE, else {data}/images."
    )
    cache: str = Field(
        default="/tmp/kit-{user}", description="Node-local caches: Triton, torch extensions, Hugging Face."
    )


Signer = Annotated[
    str,
    Form(
        pattern=r"[A-Za-z0-9_.@+-]+ (ssh|ecdsa|sk)-[A-Za-z0-9@.-]+ [A-Za-z0-9+/]+=*( .*)?",
        what="a signer",
        how="a name, then the public key as its .pub file has it",
        example="alice@lab ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPublicKeyOfAlice",
    ),
]


class StoreRules(Model):
    """Rules for the images that the cluster accepts."""

    signers: tuple[Signer, ...] = Field(
        default=(), description="Who may sign images, name and public SSH key each; none: images need no signature."
    )


def _host(value: str) -> str:
    """A word that ssh can only take for a host."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]*", value):
        raise Invalid(
            f"{shown(value)} is not a host: letters, digits and _ . @ : % -, the first a letter or a digit",
            write="login.pod",
        )
    return value


class SshRules(Model):
    """How this machine reaches the cluster's login node, with the system's OpenSSH."""

    host: Annotated[str, AfterValidator(_host)] = Field(
        description="The login node, as `ssh` takes it: a name of ssh_config, a host, or user@host."
    )
    config: Text | None = Field(default=None, description="Another ssh_config than the user's.")
    path: Text | None = Field(
        default=None, description="Folders put before PATH there, where an ssh session lacks Slurm's commands."
    )
    timeout_s: float = Field(
        default=20.0, gt=0, le=600, description="Longest wait for a connection, and for a listing."
    )


class RelayRules(Model):
    """The relay of a training over two clusters, if this cluster is named first: `kit submit --cluster a,b`."""

    host: Annotated[str, AfterValidator(_host)] = Field(
        description="What the nodes of this cluster reach the relay by: a name or an address of the first cluster's login node. "
        "A second cluster without [relay] takes the first one's."
    )
    ports: PortRange = Field(default="29600-29699", description="The ports that such a run takes one of.")
    bind: Annotated[str, AfterValidator(_host)] | None = Field(
        default=None, description="The address of the login node that it listens on; default: all."
    )


class Price(Model):
    """The price that `kit time` and `kit report` use."""

    gpu_hour: float = Field(ge=0, description="Of one GPU for an hour, used or not.")
    currency: Text = Field(default="USD", description="Its unit, as it is printed.")


class Cluster(Model):
    """One cluster file."""

    description: str = Field(default="", description="One line for people.")
    embedded: bool = Field(default=False, description="The Slurm that `kit cluster up` starts on this machine.")
    node: NodeShape
    container: ContainerRules = Field(default_factory=ContainerRules)
    qos: dict[Name, QosRow] = Field(default_factory=dict, description="Rows that jobs name by their key qos.")
    default_qos: Name | None = Field(default=None, description="Row of jobs that name none.")
    mounts: Name | None = Field(default=None, description="The cluster's mount set: a file of mounts/.")
    paths: Paths = Field(default_factory=Paths)
    store: StoreRules = Field(default_factory=StoreRules)
    ssh: SshRules | None = Field(default=None, description="Of a cluster that is reached over ssh.")
    relay: RelayRules | None = Field(
        default=None, description="How the nodes of another cluster reach this one's login node."
    )
    price: Price | None = Field(default=None, description="What a GPU costs.")
    network: Annotated[dict[EnvName, Text], AfterValidator(interfaces)] = Field(
        default_factory=dict, description="NCCL, Gloo and fabric variables of every rank."
    )
    setup: tuple[Text, ...] = Field(default=(), description="Shell lines before the job's own set-up.")
    max_array: int = Field(
        default=1001, ge=1, description="Most tasks of one array: Slurm's MaxArraySize, 1001 unless it is configured."
    )
    expedited_requeue: bool = Field(
        default=False,
        description="Jobs that may be queued again are submitted with --requeue=expedite, and are not held before they start "
        "again: Slurm 25.11 or later with SlurmctldParameters=enable_expedited_requeue.",
    )
    defaults: dict[str, Any] = Field(
        default_factory=dict, description="Job keys that this cluster fills in where the job is silent."
    )

    @property
    def runs(self) -> str:
        """The folder for run folders, with placeholders. Over ssh, the default is a folder of the cluster's login node."""
        return self.paths.runs if self.ssh is None or "runs" in self.paths.model_fields_set else "{home}/kit/runs"

    @model_validator(mode="after")
    def _ssh_has_its_own_folders(self) -> Cluster:
        if self.ssh is not None:
            if self.embedded:
                raise Invalid(
                    "an embedded cluster runs on this machine and takes no ssh",
                    key=("ssh",),
                    hint="remove embedded = true",
                )
            for name in ("runs", "store", "cache"):
                value = getattr(self.paths, name)
                if "{project}" in (value or "") and name in self.paths.model_fields_set:
                    problem = "{project} is a folder of this machine, and the cluster is reached over ssh"
                    raise Invalid(problem, key=("paths", name), write=value.replace("{project}", "{home}/kit"))
        return self

    @model_validator(mode="after")
    def _default_qos_exists(self) -> Cluster:
        if self.default_qos is not None and self.default_qos not in self.qos:
            near = nearest(self.default_qos, self.qos) or next(iter(self.qos), None)
            raise Invalid(
                f"[qos] has no row {self.default_qos!r}",
                key=("default_qos",),
                allowed=", ".join(self.qos),
                write=near,
                hint="" if near else f"[qos.{self.default_qos}]",
            )
        return self
