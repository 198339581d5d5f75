"""Programs for the roles of `[rl]` and `[sft]`, from `[programs.<name>]` of launcher.toml."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from kit.spec.roles import Role, RoleName
from kit.spec.schema_base import FileName, Model


class Program(Role):
    """A role as the launcher defines it.

    In addition to the placeholders of any command, {python}, {code} and {config} are replaced by the interpreter, the launcher's
    folder and the role's resolved options; a shared key, such as {weight_broadcast}, by its value.
    """

    options: tuple[str, ...] | None = Field(
        default=None,
        description="Every option that it knows, dotted; default: not known here, the program itself refuses others.",
    )
    only_with: str | None = Field(
        default=None, description="Key of [rl] or [sft]; the role is there only where the job says it."
    )
    not_with: str | None = Field(default=None, description="The same; the role is there only where the job does not.")
    based_on: RoleName | None = Field(
        default=None, description="Another role, whose options it has too where its own do not say otherwise."
    )
    sets: dict[str, Any] = Field(
        default={}, description="Options that it starts with: over those of based_on, below the job's."
    )
    env_option: str | None = Field(
        default=None,
        description="Option that takes the job's [roles.<name>.env]: the program sets its own defaults over the step's.",
    )


class Releases(Model):
    """The releases of other people's program that a launcher, or a set of programs, knows."""

    package: str = Field(description="The Python package whose version in the image's lock is the release.")
    known: tuple[str, ...] = Field(min_length=1, description="Oldest first; another one is refused.")
    newer_with: dict[str, str] = Field(
        default={},
        description="Known release -> 'package version': the package that is at least so new where a checkout of it is "
        "installed that still has the number of the release before.",
    )
    options: FileName | None = Field(
        default=None,
        description="File of kit/frameworks/ with each release's options: others are refused before submit.",
    )
    module: str = Field(
        default="", description="Variable of [env] that names another module, which may have options of its own."
    )
    words: tuple[str, ...] = Field(default=(), description="Options besides those of the file, without dashes.")


class Programs(Model):
    """A set of programs, and the mapping of shared keys to their options."""

    requires: tuple[str, ...] = Field(default=(), description="Python packages that the image must hold.")
    defaults: dict[str, Any] = Field(
        default={}, description="Shared keys where the job is silent; {run} in a text is the run folder."
    )
    keys: dict[str, tuple[str, ...]] = Field(
        default={}, description="Shared key -> the roles' options that take it, such as 'trainer.model.seq_len'."
    )
    releases: Releases | None = Field(
        default=None, description="Releases that take these options; default: any, the programs are the kit's own."
    )
    follows: dict[str, tuple[str, ...]] = Field(
        default={}, description="A role's option -> options of other roles that take its value, unless they are said."
    )
    implied: dict[str, dict[str, Any]] = Field(
        default={},
        description="A role's table, or 'option = value' -> options and their values where the job has it; "
        "{role.option} in a text is that option's value.",
    )
    expert: str = Field(
        default="", description="Option of the servers with which the GPUs of a set share the experts of a model."
    )
    split: tuple[str, ...] = Field(
        default=(),
        description="Options of ranks that share a sequence, such as 'trainer.model.cp': their product divides train_workers.",
    )
    refused: dict[str, str] = Field(
        default={},
        description="'role.option', or 'role.option = value', that these programs take and these roles cannot start -> why, "
        "and what to do.",
    )
    one_wandb_run: bool = Field(
        default=False, description="All roles log to one run of Weights & Biases; default: each to its own."
    )
    roles: dict[RoleName, Program] = Field(description="The program of each role, by the role's name.")
