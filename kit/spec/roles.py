"""Roles: several programs in one allocation, each on its own nodes. The `[roles.<name>]` tables of job.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from kit.spec.base import EnvName, Model, Text


def _not_ours(name: str) -> str:
    if name.startswith("kit-"):
        raise ValueError("names that begin with kit- are the kit's own steps'")
    if name == "self":
        raise ValueError("{self.index} is said of every role; take another name")
    return name


# A role's name becomes a part of variables' names, of log folders and of a Slurm step's name.
RoleName = Annotated[
    str, Field(pattern=r"^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$", examples=["trainer"]), AfterValidator(_not_ours)
]
PortName = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,14}[a-z0-9])?$", examples=["http"])]
StepShape = Literal["srun", "torchrun"]


def filled(word: str, known: Mapping[str, str]) -> str:
    """A word with each of the known placeholders, braces and all, replaced."""
    for placeholder, value in known.items():
        word = word.replace(placeholder, value)
    return word


class Ready(Model):
    """How it is known that a role is there. One of tcp, http and file."""

    tcp: PortName | None = Field(default=None, description="A port of the role that takes a connection.")
    http: PortName | None = Field(default=None, description="A port of the role that answers a GET with 2xx.")
    path: str = Field(default="/", pattern=r"^/[\x21-\x7e]*$", description="What http asks for.")
    file: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$",
        description="A file of the run folder that the role makes.",
    )
    timeout_s: int = Field(default=120, ge=1, description="Seconds until the job ends for want of it.")
    health: bool = Field(
        default=False, description="Go on asking; a role that gives no answer three times running is killed."
    )

    @model_validator(mode="after")
    def _one(self) -> Ready:
        if sum(v is not None for v in (self.tcp, self.http, self.file)) != 1:
            raise ValueError("give one of tcp, http and file")
        return self


class Role(Model):
    """One program of the job: a Slurm step of its own."""

    nodes: Annotated[int, Field(ge=1)] | Literal["rest"] | None = Field(
        default=None, description="How many nodes; 'rest': those that no other role has; default 1."
    )
    shares: RoleName | None = Field(
        default=None, description="Another role, on whose first `nodes` nodes it runs, or on all."
    )
    image: str | None = Field(default=None, description="A folder of containers/; default: the job's image.")
    shape: StepShape | None = Field(
        default=None, description="torchrun: one task a node; srun: one task a rank (default)."
    )
    script: Text | None = Field(default=None, description="A Python program, relative to the job file.")
    command: tuple[Text, ...] | None = Field(
        default=None,
        min_length=1,
        description="Any program; {run} is the run folder and {workspace} the job's folder. Default: the job's own.",
    )
    args: tuple[Text, ...] = Field(default=(), description="Arguments, after those of the job's own program.")
    ranks_per_node: int | None = Field(
        default=None, ge=1, description="Default: one per GPU under torchrun, 1 under srun."
    )
    gpus: tuple[int, ...] | None = Field(
        default=None, description="Which of the node's GPUs, by their place among the job's; default: all."
    )
    env: dict[EnvName, Text] = Field(default_factory=dict, description="On top of the job's env.")
    ports: tuple[PortName, ...] = Field(
        default=(), description="Names of ports; the numbers are found when the job runs."
    )
    ready: Ready | None = Field(default=None, description="When those that come after it may start.")
    after: tuple[RoleName, ...] = Field(default=(), description="Roles that have to be ready, or to have ended well.")
    policy: Literal["main", "service", "replica"] = Field(
        default="main",
        description="main: the job ends with it; service: has to live while a main one does; replica: one of several alike.",
    )
    restart: int = Field(default=0, ge=0, description="Times in a row that it is started again, with growing pauses.")
    least: int = Field(default=1, ge=1, description="Under policy 'replica': how many have to be left.")

    @model_validator(mode="after")
    def _consistent(self) -> Role:
        if self.nodes == "rest" and self.shares is not None:
            raise ValueError(
                "nodes = 'rest' and shares: say how many of the other role's nodes, or leave nodes out for all"
            )
        if self.script is not None and self.command is not None:
            raise ValueError("script and command: give one of them")
        wanted = self.ready and (self.ready.tcp or self.ready.http)
        if wanted and wanted not in self.ports:
            raise ValueError(f"ready asks port {wanted!r}; the role's ports are {', '.join(self.ports) or 'none'}")
        return self
