"""`[diloco]`: how a job's nodes are divided into replica groups, and how the groups average."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kit.spec.schema_base import Model
from kit.spec.wrong_value_messages import Form, Invalid

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
    """Replica groups. Without a layout key, each node is a group. A missing key keeps the program's own default.

    sync_every = 30 becomes the program's option `--sync-every 30`, and so on; docs/guides/diloco.md explains them.
    """

    replicas_per_node: int | None = Field(
        default=None, ge=1, description="Groups on each node; its GPUs are shared out over them."
    )
    nodes_per_replica: int | None = Field(default=None, ge=1, description="Nodes that one group spans.")
    lighthouse: LighthouseUrl | None = Field(
        default=None,
        description="Another job's, as http://HOST:PORT: this job starts none, and its groups join that training.",
    )
    groups: int | None = Field(
        default=None,
        ge=1,
        description="Groups of the whole training, where several jobs hold them; default: this job's.",
    )
    first_group: int = Field(default=0, ge=0, description="Number of this job's first group among them.")
    across: bool = Field(
        default=False,
        description="`kit submit --cluster a,b` splits the groups over two clusters, whose nodes need not reach each other.",
    )
    relay: RelayAddress | None = Field(
        default=None,
        description="The relay between the two clusters, which `kit submit --cluster a,b` starts and fills in.",
    )
    min_replicas: int | None = Field(
        default=None, ge=1, description="Groups without which nothing is averaged; default: 2, or 1 of a single group."
    )
    restarts: int = Field(
        default=3, ge=0, description="Times in a row that a group which dies is started again, with growing pauses."
    )
    inner: Literal["adamw", "muon"] | None = Field(default=None, description="adamw: DiLoCo; muon: MuLoCo.")
    sync_every: int | None = Field(default=None, ge=1, description="H: inner steps from one average to the next.")
    fragments: int | None = Field(default=None, ge=1, description="Parts of the model, averaged in turn.")
    overlap: int | None = Field(default=None, ge=0, description="Inner steps that an average may take, computing on.")
    alpha: float | None = Field(default=None, ge=0, lt=1, description="Share of a group's own parameters in the mix.")
    outer_lr: float | None = Field(default=None, gt=0, description="Learning rate of the outer Nesterov SGD.")
    outer_momentum: float | None = Field(default=None, ge=0, lt=1, description="Its momentum.")
    bits: Literal[32, 8, 4, 2] | None = Field(default=None, description="Of each value that is sent.")
    top_k: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the values that is sent, the largest ones; not together with bits.",
    )
    inside: Literal["ddp", "fsdp"] | None = Field(default=None, description="How the ranks of a group share the work.")
    wire: Literal["auto", "gloo", "nccl"] | None = Field(default=None, description="What carries the averages.")
    start_wait: float | None = Field(default=None, ge=0, description="Seconds to wait for all groups at a start.")
    timeout: float | None = Field(default=None, gt=0, description="Seconds until a silent group is given up.")
    quorum_timeout: float | None = Field(default=None, gt=0, description="Seconds without a quorum until a group ends.")

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
