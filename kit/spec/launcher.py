"""Launcher: how ranks start. `launchers/<name>/launcher.toml`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from kit.spec.job import Job, Shape
from kit.spec.rl_and_sft import Sft
from kit.spec.role_programs import Programs
from kit.spec.schema_base import FileName, Model, Name

# The modules of kit/frameworks/.
FrameworkName = Literal["deepspeed", "diloco", "megatron", "ray", "rl", "sft", "torchtitan"]


class Releases(Model):
    """The releases of another project's program that a launcher knows."""

    package: str = Field(description="The Python package whose version in the image's lock is the release.")
    known: tuple[str, ...] = Field(min_length=1, description="Oldest first; another one is refused.")
    options: FileName | None = Field(
        default=None,
        description="File of kit/frameworks/ with each release's options: others are refused before submit.",
    )
    module: str = Field(
        default="", description="Variable of [env] that names another module, which may have options of its own."
    )
    words: tuple[str, ...] = Field(default=(), description="Options besides those of the file, without dashes.")


class Launcher(Model):
    """One launcher file; its folder contains the reference training program."""

    description: str = Field(default="", description="One line for people.")
    shapes: tuple[Shape, ...] = Field(
        min_length=1, description="Start shapes that the framework supports; the first is the default."
    )
    script: FileName | None = Field(default=None, description="The reference program in this folder.")
    framework: FrameworkName | None = Field(
        default=None,
        description="A module of kit/frameworks/ that checks the job and adds the framework's own files and options.",
    )
    programs: dict[Name, Programs] = Field(
        default={},
        description="Sets of programs for the roles of [rl] or [sft], by the name that its `programs` chooses.",
    )
    releases: Releases | None = Field(
        default=None, description="Releases of the program that the launcher starts, where it is not the kit's."
    )
    varies: str = Field(
        default="",
        description="Why two runs of the same code and seed may differ in their numbers; empty: on CPUs they are equal to the bit.",
    )
    most_ranks: int | None = Field(
        default=None, ge=1, description="How many processes it starts at most; default: as many as the job asks for."
    )
    requires: tuple[str, ...] = Field(default=(), description="Python packages that the image must hold.")
    fits: dict[str, dict[str, bool | int]] = Field(
        default_factory=dict,
        description="Program of this folder -> options that must fit the ranks, with their defaults; 0: none, false: a switch.",
    )
    defaults: dict[str, Any] = Field(
        default_factory=dict, description="Job keys that this launcher fills in where job and cluster are silent."
    )

    def required(self, job: Job) -> tuple[str, ...]:
        """The packages that a job's image must have for the programs that this launcher would start."""
        chosen = self.programs.get((job.rl or job.sft or Sft()).programs)
        return (*self.requires, *(chosen.requires if chosen else ()), *job.metrics.packages)
