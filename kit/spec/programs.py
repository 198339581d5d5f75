"""Programs: who plays the roles of a run, as `[programs.<name>]` of launcher.toml says."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kit.spec.base import EnvName, Model, Name, Text


class Ready(Model):
    """When a role counts as ready."""

    kind: Literal["tcp", "http", "file"]
    port: Name | None = Field(default=None, description="One of the role's ports (tcp, http).")
    path: Text | None = Field(default=None, description="What to ask for (http); a file of the run folder (file).")
    timeout_s: int = Field(default=600, ge=1, description="Seconds until the run is given up.")


class Program(Model):
    """One role's program."""

    command: tuple[Text, ...] = Field(
        min_length=1,
        description="Its words: {python}, {code} (the launcher's folder), {config} (its resolved options), {run} stand "
        "for paths, {weight_broadcast} for that key of [rl].",
    )
    shape: Literal["srun", "torchrun"] = "srun"
    on: Name | None = Field(
        default=None, description="The role on whose first node it runs; default: nodes of its own."
    )
    ranks_per_node: int | None = Field(default=None, ge=1, description="Default: one a GPU.")
    ports: tuple[Name, ...] = ()
    ready: Ready | None = None
    after: tuple[Name, ...] = Field(default=(), description="Roles that must be ready first.")
    exit: Literal["main", "service"] = Field(
        default="service", description="main: its end ends the run; service: it runs as long as the main one."
    )
    restart: int = Field(default=0, ge=0, description="How often it is started again when it dies.")
    env: dict[EnvName, Text] = Field(default={}, description="Environment of its ranks.")
    options: tuple[str, ...] | None = Field(
        default=None,
        description="Every option that it knows, dotted; default: not known here, the program itself refuses others.",
    )


class Programs(Model):
    """A set of programs, and where their options are."""

    requires: tuple[str, ...] = Field(default=(), description="Python packages that the image must hold.")
    keys: dict[str, tuple[str, ...]] = Field(
        default={}, description="Shared key -> the roles' options that take it, such as 'trainer.model.seq_len'."
    )
    roles: dict[Name, Program]
