"""Roles: several programs in one allocation, each on its own nodes. The `[roles.<name>]` tables of job.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from kit.spec.schema_base import EnvName, FileName, Model, Text
from kit.spec.wrong_value_messages import Form, Invalid


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
    """The check that a role is ready. One of tcp, http and file."""

    tcp: PortName | None = Field(default=None, description="A port of the role that takes a connection.")
    http: PortName | None = Field(default=None, description="A port of the role that answers a GET with 2xx.")
    path: _UrlPath = Field(default="/", description="What http asks for.")
    file: FileName | None = Field(default=None, description="A file of the run folder that the role makes.")
    timeout_s: int = Field(default=120, ge=1, description="Seconds to wait for it before the job ends.")
    health: bool = Field(
        default=False, description="Keep asking; a role that gives no answer three times running is killed."
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
    """One program of the job; it runs as its own Slurm step."""

    nodes: Annotated[int, Field(ge=1)] | Literal["rest"] | None = Field(
        default=None, description="How many nodes; 'rest': those that no other role has; default 1."
    )
    shares: RoleName | None = Field(
        default=None, description="Another role, on whose first `nodes` nodes it runs, or on all."
    )
    image: str | None = Field(default=None, description="A folder of containers/; default: the job's image.")
    shape: StepShape | None = Field(
        default=None, description="torchrun: one task per node; srun: one task per rank (default)."
    )
    script: Text | None = Field(default=None, description="A Python program, relative to the job file.")
    command: tuple[Text, ...] | None = Field(
        default=None,
        min_length=1,
        examples=[["python3", "serve.py"]],
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
