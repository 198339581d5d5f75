"""Cluster: where a job runs. `clusters/<name>.toml`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from kit.errors import nearest
from kit.spec.base import EnvName, Memory, Model, Name, RuntimeName, SbatchWord, Text, TimeLimit, interfaces
from kit.spec.form import Form, Invalid

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


class NodeShape(Model):
    """What one node of the cluster holds."""

    cpus: int = Field(ge=1, description="CPUs that jobs may use.")
    gpus: int = Field(default=0, ge=0, description="GPUs; 0 for a CPU cluster.")
    memory: Memory | None = Field(default=None, description="Memory that jobs may use.")
    gres: GresForm = Field(
        default="gpus-per-node",
        description="How GPUs are asked for: 'gpus-per-node', 'gres:gpu', 'gres:gpu:h100', or 'none'.",
    )


class QosRow(Model):
    """One row of the QOS table: what a job gets, and may ask for, under this name."""

    account: SbatchWord | None = None
    partition: SbatchWord | None = None
    qos: SbatchWord | Literal[False] | None = Field(
        default=None, description="Slurm's QOS; default: the row's own name. false: none is asked for."
    )
    memory: Memory | None = None
    cpus_per_node: int | None = Field(default=None, ge=1)
    time: TimeLimit | None = Field(default=None, description="Longest time limit; also the default.")
    max_nodes: int | None = Field(default=None, ge=1, description="Most nodes of one job.")
    max_gpus_per_node: int | None = Field(default=None, ge=0, description="Most GPUs of one job on a node.")
    max_array: int | None = Field(default=None, ge=1, description="Most tasks of one array.")


class ContainerRules(Model):
    """The cluster's container runtime and what it can do."""

    runtime: RuntimeName = Field(default="auto", description="auto: pyxis where the cluster has it, else bubblewrap.")
    pyxis_unpacks: bool | None = Field(
        default=None,
        description="Whether Pyxis unpacks images instead of mounting them; default: what the nodes' plugstack.conf says.",
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
    """What images the cluster takes."""

    signers: tuple[Signer, ...] = Field(
        default=(), description="Who may sign images, name and public SSH key each; none: images need no signature."
    )


class Price(Model):
    """What `kit time` and `kit report` count with."""

    gpu_hour: float = Field(ge=0, description="Of one GPU for an hour, used or not.")
    currency: Text = Field(default="USD", description="Its unit, as it is printed.")


class Cluster(Model):
    """One cluster file."""

    description: str = ""
    embedded: bool = Field(default=False, description="The Slurm that `kit cluster up` starts on this machine.")
    node: NodeShape
    container: ContainerRules = Field(default_factory=ContainerRules)
    qos: dict[Name, QosRow] = Field(default_factory=dict)
    default_qos: Name | None = None
    mounts: Name | None = Field(default=None, description="The cluster's mount set: a file of mounts/.")
    paths: Paths = Field(default_factory=Paths)
    store: StoreRules = Field(default_factory=StoreRules)
    price: Price | None = Field(default=None, description="What a GPU costs.")
    network: Annotated[dict[EnvName, Text], AfterValidator(interfaces)] = Field(
        default_factory=dict, description="NCCL, Gloo and fabric variables of every rank."
    )
    setup: tuple[Text, ...] = Field(default=(), description="Shell lines before the job's own set-up.")
    max_array: int = Field(
        default=1001, ge=1, description="Most tasks of one array: Slurm's MaxArraySize, 1001 unless it is configured."
    )
    defaults: dict[str, Any] = Field(
        default_factory=dict, description="Job keys that this cluster fills in where the job is silent."
    )

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
