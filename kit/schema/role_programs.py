"""Programs for the roles of `[rl]` and `[sft]`, from `[programs.<name>]` of launcher.toml."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from kit.schema.roles import Role, RoleName
from kit.schema.schema_base import FileName, Model


class Program(Role):
    """A role as the launcher defines it.

    In addition to the placeholders of any command, {python}, {code} and {config} are replaced by the interpreter, the launcher's
    folder and the role's resolved options; a shared key, such as {weight_broadcast}, by its value.
    """

    options: tuple[str, ...] | None = Field(
        default=None,
        description="All options of the program, as dotted names. The kit refuses others. Default: only the program itself "
        "checks its options.",
    )
    options_of: str = Field(
        default="", description="Name of the program in `option_lists`, if it is not the role's or that of based_on."
    )
    only_with: str | None = Field(
        default=None, description="Key of [rl] or [sft]. The role exists only if the job sets this key."
    )
    not_with: str | None = Field(
        default=None, description="Key of [rl] or [sft]. The role exists only if the job does not set this key."
    )
    based_on: RoleName | None = Field(
        default=None, description="Another role. This role also gets that role's options, unless it sets them itself."
    )
    sets: dict[str, Any] = Field(
        default={},
        description="Options of the role. They win over those of based_on, and the job's options win over them.",
    )
    env_option: str | None = Field(
        default=None,
        description="Option that gets the variables of the job's [roles.<name>.env], for a program that overrides its "
        "environment with its own defaults.",
    )


class Releases(Model):
    """The known releases of a program that is not part of the kit."""

    package: str = Field(description="A Python package. Its version in the image's lock is the release.")
    known: tuple[str, ...] = Field(
        min_length=1, description="Known releases, oldest first. The kit refuses any other release."
    )
    newer_with: dict[str, str] = Field(
        default={},
        description="Known release -> 'package version' of another package, for a checkout that still has the version "
        "number of the release before. If the image has the other package in this version or a newer one, the kit takes the "
        "program for the known release.",
    )
    options: FileName | None = Field(
        default=None,
        description="File of kit/frameworks/ with the options of each release. The kit refuses other options before "
        "submit.",
    )
    module: str = Field(
        default="", description="Variable of [env] that names another module. This module may have options of its own."
    )
    words: tuple[str, ...] = Field(
        default=(), description="More options than those of the file, without the leading dashes."
    )


class Programs(Model):
    """A set of programs, and the options that the shared keys set."""

    requires: tuple[str, ...] = Field(default=(), description="Python packages that the image must contain.")
    defaults: dict[str, Any] = Field(
        default={}, description="Default values of shared keys. {run} in a text is the run folder."
    )
    keys: dict[str, tuple[str, ...]] = Field(
        default={},
        description="Shared key -> options of the roles that get its value, such as 'trainer.model.seq_len'.",
    )
    releases: Releases | None = Field(
        default=None,
        description="Releases of the programs that have these options. Default: no check, because the programs are the "
        "kit's own.",
    )
    option_lists: FileName | None = Field(
        default=None,
        description="File of kit/frameworks/ with all options of each program, by release. The kit refuses others.",
    )
    follows: dict[str, tuple[str, ...]] = Field(
        default={},
        description="Option of a role -> options of other roles that get its value, unless they are already set.",
    )
    implied: dict[str, dict[str, Any]] = Field(
        default={},
        description="Option or table of a role, or 'option = value' -> other options and their values. If the job sets the "
        "first, the kit sets the others, unless they are already set. {role.option} in a text is that option's value.",
    )
    expert: str = Field(
        default="", description="Option of the servers that lets the GPUs of a set share the experts of a model."
    )
    split: tuple[str, ...] = Field(
        default=(),
        description="Options that set how many ranks share a sequence, such as 'trainer.model.cp'. The kit divides the "
        "number of the trainer's ranks by their product; the quotient is train_workers.",
    )
    refused: dict[str, str] = Field(
        default={},
        description="'role.option' or 'role.option = value' -> the reason why the kit refuses it, and what to do instead. "
        "The programs accept these options, but no role here can start what they need.",
    )
    one_wandb_run: bool = Field(
        default=False,
        description="true: all roles log to one run of Weights & Biases. false: each role logs to its own.",
    )
    roles: dict[RoleName, Program] = Field(description="The program of each role, by the role's name.")
