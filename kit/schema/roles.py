"""Roles: several programs in one allocation, each on its own nodes. The `[roles.<name>]` tables of job.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from kit.schema.schema_base import EnvName, FileName, Model, Text
from kit.schema.wrong_value_messages import Form, Invalid


def _not_ours(name: str) -> str:
    if name.startswith("kit-"):
        raise Invalid(
            "names that begin with kit- are those of the kit's own steps", write=name.removeprefix("kit-") or "trainer"
        )
    if name == "self":
        raise Invalid("the name is taken: {self.index} means the role itself in every role", write="trainer")
    return name


# A role's name becomes part of the names of variables, log folders and Slurm steps.
RoleName = Annotated[
    str,
    Form(
        pattern=r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?",
        what="the name of a role",
        how="lower-case letters and digits with - between them, a letter first, 32 at most",
        example="trainer",
        nearest=lambda text: re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-"),
    ),
    AfterValidator(_not_ours),
]
PortName = Annotated[
    str,
    Form(
        pattern=r"[a-z]([a-z0-9-]{0,14}[a-z0-9])?",
        what="the name of a port",
        how="lower-case letters and digits with - between them, a letter first, 16 at most; the number is found when the job runs",
        example="http",
        nearest=lambda text: re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-"),
    ),
]
_UrlPath = Annotated[
    str,
    Form(
        pattern=r"/[\x21-\x7e]*",
        what="the path of a URL",
        how="it starts with / and has no blank",
        example="/health",
        nearest=lambda text: f"/{text}",
    ),
]
StepShape = Literal["srun", "torchrun"]


def filled(word: str, known: Mapping[str, str]) -> str:
    """A word with all known placeholders, including their braces, replaced."""
    for placeholder, value in known.items():
        word = word.replace(placeholder, value)
    return word


class Ready(Model):
    """The check that a role is ready: exactly one of tcp, http and file."""

    tcp: PortName | None = Field(
        default=None, description="Name of a port. The role is ready when the port accepts a connection."
    )
    http: PortName | None = Field(
        default=None, description="Name of a port. The role is ready when the port answers a GET with 2xx."
    )
    path: _UrlPath = Field(default="/", description="Path of the GET that http sends.")
    file: FileName | None = Field(
        default=None,
        description="A file in the run folder. The role is ready when it has made this file.",
        examples=["ready"],
    )
    timeout_s: int = Field(
        default=120,
        ge=1,
        description="Seconds that the role has to become ready. After them, the job ends with exit code 74.",
    )
    health: bool = Field(
        default=False,
        description="Continue the check after the role is ready. The kit kills a role that fails the check three times in "
        "a row.",
    )

    @model_validator(mode="after")
    def _one(self) -> Ready:
        if sum(v is not None for v in (self.tcp, self.http, self.file)) != 1:
            raise Invalid(
                "give exactly one of tcp, http and file: it says when the role is ready",
                hint='ready = { tcp = "http" }',
            )
        return self


class Role(Model):
    """One program of the job. It runs as its own Slurm step."""

    nodes: Annotated[int, Field(ge=1)] | Literal["rest"] | None = Field(
        default=None, description="Number of nodes; default: 1. 'rest': the job's nodes that no other role has."
    )
    shares: RoleName | None = Field(
        default=None,
        description="Another role. This role runs on the first `nodes` nodes of that role; without `nodes`, on all of "
        "them.",
    )
    image: str | None = Field(
        default=None, description="Image of the role: a folder of containers/; default: the job's image."
    )
    shape: StepShape | None = Field(
        default=None, description="Start shape. torchrun: one task per node. srun (the default): one task per rank."
    )
    script: Text | None = Field(default=None, description="A Python program. The path is relative to the job file.")
    command: tuple[Text, ...] | None = Field(
        default=None,
        min_length=1,
        examples=[["python3", "serve.py"]],
        description="Any program. {run} is the run folder, and {workspace} is the job's folder. Default: the job's own "
        "program.",
    )
    args: tuple[Text, ...] = Field(
        default=(),
        description="Arguments of the program. If the role runs the job's own program, they come after the job's `args`.",
    )
    ranks_per_node: int | None = Field(
        default=None, ge=1, description="Ranks on each node; default: one per GPU with torchrun, 1 with srun."
    )
    gpus: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        default=None,
        description="GPUs of the role on each of its nodes, by their numbers among the job's GPUs there, from 0. Default: "
        "all; []: none.",
    )
    env: dict[EnvName, Text] = Field(
        default_factory=dict,
        description="Environment variables of the role, in addition to the job's env. They win over it.",
    )
    ports: tuple[PortName, ...] = Field(
        default=(), description="Names of ports. The job chooses their numbers when it runs."
    )
    ready: Ready | None = Field(
        default=None,
        description="Check that the role is ready. The roles that name it in `after` wait for this. Default: the role is "
        "ready once it has started.",
    )
    after: tuple[RoleName, ...] = Field(
        default=(), description="Roles for which this role waits. Each must be ready, or must have ended with 0."
    )
    policy: Literal["main", "service", "replica"] = Field(
        default="main",
        description="main: the job ends well when all main roles have ended with 0, and fails if one of them fails. "
        "service: must run until the main roles have ended; then the kit stops it. replica: one of several alike; the others "
        "continue without it.",
    )
    restart: int = Field(
        default=0,
        ge=0,
        description="Maximum number of restarts in a row after failures of the role. The pauses between them grow: 1, 2, "
        "4, … s, at most 60 s.",
    )
    least: int = Field(
        default=1, ge=1, description="With policy 'replica': the job ends if fewer replicas than this are left."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Role:
        if self.nodes == "rest" and self.shares is not None:
            raise Invalid(
                "with 'shares', this key is a number of the other role's nodes; without the key, the role runs on all of them",
                key=("nodes",),
                write=1,
            )
        if self.script is not None and self.command is not None:
            raise Invalid("a role starts a script or a command, not both", key=("command",), hint="remove the line")
        wanted = self.ready and (self.ready.tcp or self.ready.http)
        if wanted and wanted not in self.ports:
            raise Invalid(
                f"the role has no port {wanted!r} that could be asked",
                key=("ready", "tcp" if self.ready and self.ready.tcp else "http"),
                allowed=", ".join(self.ports),
                hint=f"ports = {[*self.ports, wanted]}".replace("'", '"'),
            )
        return self
