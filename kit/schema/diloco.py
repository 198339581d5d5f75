"""`[diloco]`: how a job's nodes are divided into replica groups, and how the groups average."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kit.schema.schema_base import Model
from kit.schema.wrong_value_messages import Form, Invalid

# These keys configure the start shape; all others are options of the program.
_LAYOUT = {
    "replicas_per_node", "nodes_per_replica", "restarts", "lighthouse", "groups", "first_group", "across", "relay",
}  # fmt: skip


LighthouseUrl = Annotated[
    str,
    Form(
        pattern=r"http://[A-Za-z0-9_.\[\]:-]+:[0-9]{1,5}",
        what="a lighthouse's address",
        how="http://, a host or an address, and a port",
        example="http://10.0.0.7:29510",
    ),
]

RelayAddress = Annotated[
    str,
    Form(
        pattern=r"[A-Za-z0-9_.\[\]:-]+:[0-9]{1,5}",
        what="a relay's address",
        how="a host or an address, and a port",
        example="login.pod:29600",
    ),
]


class DiLoCo(Model):
    """Replica groups. Without replicas_per_node and nodes_per_replica, each node is a group. For a missing key, the program's own
    default applies.

    sync_every = 30 becomes the program's option `--sync-every 30`, and so on; docs/guides/diloco.md explains them.
    """

    replicas_per_node: int | None = Field(
        default=None, ge=1, description="Groups on each node. They share its GPUs equally."
    )
    nodes_per_replica: int | None = Field(default=None, ge=1, description="Nodes that one group spans.")
    lighthouse: LighthouseUrl | None = Field(
        default=None,
        description="Lighthouse of another job, as http://HOST:PORT. This job then starts no lighthouse, and its groups "
        "join that job's training.",
    )
    groups: int | None = Field(
        default=None,
        ge=1,
        description="Number of groups in the whole training, if several jobs have them. Default: the number of groups in "
        "this job.",
    )
    first_group: int = Field(
        default=0, ge=0, description="Number of this job's first group in the whole training, from 0."
    )
    across: bool = Field(
        default=False,
        description="true: `kit submit --cluster a,b` splits the groups over two clusters. The nodes of the two clusters "
        "need not reach each other.",
    )
    relay: RelayAddress | None = Field(
        default=None,
        description="Relay between the two clusters. `kit submit --cluster a,b` starts the relay and sets this key.",
    )
    min_replicas: int | None = Field(
        default=None, ge=1, description="Minimum number of groups in an average; default: 2, or 1 with a single group."
    )
    restarts: int = Field(
        default=3,
        ge=0,
        description="Maximum number of restarts in a row for a group that dies. The pauses between them grow.",
    )
    inner: Literal["adamw", "muon"] | None = Field(
        default=None, description="Inner optimizer. adamw: DiLoCo. muon: MuLoCo."
    )
    sync_every: int | None = Field(
        default=None, ge=1, description="H: inner steps from one average of a parameter to its next."
    )
    fragments: int | None = Field(
        default=None, ge=1, description="Number of parts of the model. The groups average one part after another."
    )
    overlap: int | None = Field(
        default=None,
        ge=0,
        description="Inner steps that an average may take. The groups compute these steps meanwhile.",
    )
    alpha: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="Share of its own parameters that a group keeps when it mixes them with the average.",
    )
    outer_lr: float | None = Field(default=None, gt=0, description="Learning rate of the outer Nesterov SGD.")
    outer_momentum: float | None = Field(default=None, ge=0, lt=1, description="Momentum of the outer Nesterov SGD.")
    bits: Literal[32, 8, 4, 2] | None = Field(default=None, description="Bits of each value that a group sends.")
    top_k: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the values that a group sends: the largest ones. It cannot be combined with bits below 32.",
    )
    inside: Literal["ddp", "fsdp"] | None = Field(
        default=None, description="The way in which the ranks of a group share the work."
    )
    wire: Literal["auto", "gloo", "nccl"] | None = Field(
        default=None, description="Transport of the averages. auto: nccl on GPUs, else gloo."
    )
    start_wait: float | None = Field(
        default=None,
        ge=0,
        description="Seconds to wait at a start for the remaining groups, once min_replicas groups are there.",
    )
    timeout: float | None = Field(
        default=None, gt=0, description="Seconds until the other groups give up a group that hangs in an average."
    )
    quorum_timeout: float | None = Field(
        default=None,
        gt=0,
        description="Seconds that a group waits for a quorum without any progress. Then its program ends with exit code "
        "75.",
    )

    @model_validator(mode="after")
    def _one_layout(self) -> DiLoCo:
        if (self.replicas_per_node or 1) > 1 and (self.nodes_per_replica or 1) > 1:
            raise Invalid(
                "replicas_per_node puts several groups on a node, and nodes_per_replica a group on several nodes: keep one of them",
                key=("replicas_per_node",),
                hint="remove the line",
            )
        return self

    @model_validator(mode="after")
    def _one_way_across(self) -> DiLoCo:
        if self.relay is not None and not self.across:
            raise Invalid("a relay is for a training over two clusters", key=("relay",), hint="across = true")
        if self.across and self.lighthouse is not None:
            problem = "over two clusters each job has a lighthouse of its own"
            raise Invalid(problem, key=("lighthouse",), hint="remove the line")
        if self.across and self.wire == "nccl":
            problem = "'nccl' needs nodes that reach each other; over two clusters the averages pass through a relay"
            raise Invalid(problem, key=("wire",), hint="remove the line")
        return self

    @model_validator(mode="after")
    def _one_compression(self) -> DiLoCo:
        if self.top_k is not None and (self.bits or 32) != 32:
            raise ValueError(f"bits = {self.bits} and top_k = {self.top_k:g} cannot be used together; choose one")
        return self

    @model_validator(mode="after")
    def _rounds(self) -> DiLoCo:
        """Refuse combinations that the program refuses too, if both values are known here."""
        every, parts = self.sync_every, self.fragments or 1
        if every is not None and every % parts:
            problem = f"{every} steps cannot be shared out evenly over {parts} fragments"
            raise Invalid(problem, key=("sync_every",), write=max(1, round(every / parts)) * parts)
        if every is not None and (self.overlap or 0) >= every // parts:
            problem = f"{self.overlap} is too large: it has to be below sync_every / fragments = {every // parts}"
            raise Invalid(problem, key=("overlap",), write=every // parts - 1)
        return self

    def options(self) -> dict[str, Any]:
        """The given values for the program, by option name."""
        given = self.model_dump(exclude_none=True, exclude=_LAYOUT)
        return {f"--{name.replace('_', '-')}": value for name, value in given.items()}
