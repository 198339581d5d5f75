"""Cluster: where a job runs. `clusters/<name>.toml`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from kit.errors import nearest
from kit.schema.schema_base import (
    EnvName,
    EnvPattern,
    ImageStage,
    Memory,
    Model,
    MountTarget,
    Name,
    RuntimeName,
    SbatchWord,
    Text,
    TimeLimit,
    interfaces,
)
from kit.schema.wrong_value_messages import Form, Invalid, shown

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

    cpus: int = Field(ge=1, description="Number of CPUs that jobs may use.")
    gpus: int = Field(default=0, ge=0, description="Number of GPUs; 0 on a cluster without GPUs.")
    memory: Memory | None = Field(default=None, description="Memory that jobs may use.")
    gpu_memory: Memory | None = Field(
        default=None, description="Memory of one GPU. `kit submit` uses it to estimate whether a job fits."
    )
    gres: GresForm = Field(
        default="gpus-per-node",
        description="The option with which a job asks for GPUs. 'gpus-per-node': --gpus-per-node. 'gres:gpu' or "
        "'gres:gpu:h100': --gres. 'none': no option.",
    )
    placeholder_gpus: bool | None = Field(
        default=None,
        description="true: the GPUs exist only as names, and programs compute on CPUs. Default: false; for the embedded "
        "cluster, as it was started.",
    )


class QosRow(Model):
    """One row of the QOS table: the values and limits of a job with this QOS."""

    account: SbatchWord | None = Field(
        default=None, description="Account that jobs are charged to (sbatch --account).", examples=["ml-team"]
    )
    partition: SbatchWord | None = Field(default=None, description="Slurm's partition (sbatch --partition).")
    qos: SbatchWord | Literal[False] | None = Field(
        default=None,
        description="Slurm's QOS; default: the name of the row. false: the job asks for no QOS.",
        examples=["high"],
    )
    memory: Memory | None = Field(default=None, description="Maximum memory of a job on a node; also the default.")
    cpus_per_node: int | None = Field(
        default=None, ge=1, description="Maximum number of CPUs of a job on a node; also the default."
    )
    time: TimeLimit | None = Field(default=None, description="Longest time limit; also the default.")
    max_nodes: int | None = Field(
        default=None, ge=1, description="Maximum number of nodes of one job, including its spares."
    )
    max_gpus_per_node: int | None = Field(
        default=None, ge=0, description="Maximum number of GPUs of one job on a node."
    )
    max_array: int | None = Field(default=None, ge=1, description="Maximum number of tasks of one array.")


class ContainerRules(Model):
    """The container runtime of the cluster."""

    runtime: RuntimeName = Field(
        default="auto", description="auto: pyxis if the cluster's Slurm has it, else bubblewrap."
    )
    pyxis_unpacks: bool | None = Field(
        default=None,
        description="true: Pyxis unpacks images. false: Pyxis mounts them. Default: the batch script reads plugstack.conf "
        "on its node.",
    )
    task_prolog: MountTarget | None = Field(
        default=None,
        description="Slurm's TaskProlog, as `scontrol show config` names it. Slurm runs it in a Pyxis step's container, so its "
        "folder is mounted there.",
        examples=["/opt/site/task-prolog.sh"],
    )
    stage: ImageStage = Field(
        default="shared",
        description="The way in which the image of a job reaches the nodes, if the job does not set image.stage. The "
        "values are those of image.stage.",
    )


class Paths(Model):
    """Folders of the kit on the cluster. Their paths may contain {project} {user} {home} {data}; {data} is ~/.local/share/kit."""

    runs: str = Field(
        default="{project}/runs",
        description="Folder of the run folders. All nodes must see it. Default over ssh: {home}/kit/runs.",
    )
    store: str | None = Field(
        default=None,
        description="Image store. All nodes must see it. Default: KIT_STORE, or {data}/images if KIT_STORE is not set.",
    )
    cache: str = Field(
        default="/tmp/kit-{user}",
        description="Folder on each node's own disk, for caches (Triton, torch extensions, Hugging Face) and for copied "
        "images.",
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
        default=(),
        description="The people who may sign images, each as a name and a public SSH key. An empty list: images need no "
        "signature.",
    )


class SiteParts(Model):
    """A site's own parts: scripts whose functions the batch script of every job calls."""

    folder: Text | None = Field(
        default=None,
        description="Folder with files NAME.sh. A relative path starts at the folder of the cluster's file. Nobody but root and "
        "the submitter may be able to change the files.",
        examples=["parts"],
    )
    timeout_s: int | None = Field(
        default=None,
        ge=1,
        le=86_400,
        description="Time limit of each phase of a part, in seconds; default: 60.",
        examples=[120],
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
    """Access from this machine to the cluster's login node, with the system's OpenSSH."""

    host: Annotated[str, AfterValidator(_host)] = Field(
        description="The login node, as `ssh` takes it: a name from ssh_config, a host, or user@host."
    )
    config: Text | None = Field(
        default=None,
        description="An ssh_config file to use instead of the user's own. If it belongs to a project and executes programs, it "
        "is used after `kit trust`.",
    )
    path: Text | None = Field(
        default=None,
        description="Folders to put before PATH on the login node, if an ssh session there does not find Slurm's "
        "commands.",
    )
    timeout_s: float = Field(
        default=20.0, gt=0, le=600, description="Seconds to wait at most for a connection, and for the list of runs."
    )


class RelayRules(Model):
    """The relay of one training on two clusters. It runs on the login node of the first cluster in `kit submit --cluster a,b`."""

    host: Annotated[str, AfterValidator(_host)] = Field(
        description="Name or address of the first cluster's login node, as the nodes of this cluster reach it. A second "
        "cluster without [relay] uses the host of the first one."
    )
    ports: PortRange = Field(
        default="29600-29699", description="Ports of the login node. Each such run uses one of them."
    )
    bind: Annotated[str, AfterValidator(_host)] | None = Field(
        default=None, description="Address of the login node on which the relay listens; default: all addresses."
    )


class Price(Model):
    """The price that `kit time` and `kit report` use."""

    gpu_hour: float = Field(
        ge=0, description="Price of one allocated GPU for one hour. It counts even if the job does not use the GPU."
    )
    currency: Text = Field(default="USD", description="Currency of the price, as the kit prints it.")


class Cluster(Model):
    """One cluster file."""

    description: str = Field(default="", description="One line that describes the cluster to its users.")
    embedded: bool = Field(
        default=False, description="true: this cluster's Slurm is the one that `kit cluster up` starts on this machine."
    )
    node: NodeShape
    container: ContainerRules = Field(default_factory=ContainerRules)
    qos: dict[Name, QosRow] = Field(
        default_factory=dict, description="Rows of the QOS table. A job chooses a row with its key qos."
    )
    default_qos: Name | None = Field(default=None, description="Row for jobs that choose none.", examples=["normal"])
    mounts: Name | None = Field(
        default=None, description="Mount set of the cluster: a file of mounts/.", examples=["infiniband"]
    )
    paths: Paths = Field(default_factory=Paths)
    store: StoreRules = Field(default_factory=StoreRules)
    ssh: SshRules | None = Field(default=None, description="Access to the cluster over ssh.")
    relay: RelayRules | None = Field(
        default=None, description="Relay on the login node, for one training on two clusters."
    )
    price: Price | None = Field(default=None, description="Price of GPUs.")
    network: Annotated[dict[EnvName, Text], AfterValidator(interfaces)] = Field(
        default_factory=dict, description="Environment variables of every rank for NCCL, Gloo and the fabric."
    )
    inherit: tuple[EnvPattern, ...] = Field(
        default=(),
        description="Variables of the submitter's environment that the ranks of every job get, as in a job's `inherit`. Those of "
        "the job are added.",
        examples=[["NCCL_*"]],
    )
    setup: tuple[Text, ...] = Field(default=(), description="Shell lines that run before the job's own `setup` lines.")
    parts: SiteParts = Field(default_factory=SiteParts)
    max_array: int = Field(
        default=1001,
        ge=1,
        description="Maximum number of tasks of one array: Slurm's MaxArraySize. Slurm's own default is 1001.",
    )
    expedited_requeue: bool = Field(
        default=False,
        description="true: if a job may be requeued, the kit submits it with --requeue=expedite. Slurm then does not hold "
        "the job before it starts again. This needs Slurm 25.11 or later with SlurmctldParameters=enable_expedited_requeue.",
    )
    defaults: dict[str, Any] = Field(
        default_factory=dict, description="Default values for keys of a job. The job and its QOS row win over them."
    )

    @property
    def computes_on_gpus(self) -> bool:
        """Whether programs can compute on the GPUs. Those of the embedded cluster are placeholders, until it says otherwise."""
        placeholders = self.embedded if self.node.placeholder_gpus is None else self.node.placeholder_gpus
        return bool(self.node.gpus) and not placeholders

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
