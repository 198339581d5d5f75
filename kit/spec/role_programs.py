"""Programs for the roles of `[rl]` and `[sft]`, from `[programs.<name>]` of launcher.toml."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from kit.spec.roles import Role, RoleName
from kit.spec.schema_base import Model


class Program(Role):
    """A role as the launcher defines it.

    In addition to the placeholders of any command, {python}, {code} and {config} are replaced by the interpreter, the launcher's
    folder and the role's resolved options; a shared key, such as {weight_broadcast}, by its value.
    """

    options: tuple[str, ...] | None = Field(
        default=None,
        description="Every option that it knows, dotted; default: not known here, the program itself refuses others.",
    )


class Programs(Model):
    """A set of programs, and the mapping of shared keys to their options."""

    requires: tuple[str, ...] = Field(default=(), description="Python packages that the image must hold.")
    defaults: dict[str, Any] = Field(
        default={}, description="Shared keys where the job is silent; {run} in a text is the run folder."
    )
    keys: dict[str, tuple[str, ...]] = Field(
        default={}, description="Shared key -> the roles' options that take it, such as 'trainer.model.seq_len'."
    )
    split: tuple[str, ...] = Field(
        default=(),
        description="Options of ranks that share a sequence, such as 'trainer.model.cp': their product divides train_workers.",
    )
    refused: dict[str, str] = Field(
        default={},
        description="'role.option = value' that these programs take and these roles cannot start -> why, and what to do.",
    )
    one_wandb_run: bool = Field(
        default=False, description="All roles log to one run of Weights & Biases; default: each to its own."
    )
    roles: dict[RoleName, Program] = Field(description="The program of each role, by the role's name.")
