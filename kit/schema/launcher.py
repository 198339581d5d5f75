"""Launcher: how ranks start. `launchers/<name>/launcher.toml`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from kit.schema.job import Job, Shape
from kit.schema.rl_and_sft import Sft
from kit.schema.role_programs import Programs, Releases
from kit.schema.schema_base import FileName, Model, Name

# The modules of kit/frameworks/.
FrameworkName = Literal["deepspeed", "diloco", "megatron", "ray", "rl", "sft", "torchtitan"]


class Launcher(Model):
    """One launcher file; its folder contains the reference training program."""

    description: str = Field(default="", description="One line that describes the launcher to its users.")
    shapes: tuple[Shape, ...] = Field(
        min_length=1, description="Start shapes that the launcher supports. The first one is the default."
    )
    script: FileName | None = Field(default=None, description="The reference program in this folder.")
    framework: FrameworkName | None = Field(
        default=None,
        description="A module of kit/frameworks/ that checks the job and adds the framework's own files and options.",
    )
    releases: Releases | None = Field(
        default=None,
        description="Releases of the program that the launcher starts, if the program is not part of the kit.",
    )
    programs: dict[Name, Programs] = Field(
        default={},
        description="Sets of programs for the roles of [rl] or [sft], by name. The key `programs` of [rl] or [sft] chooses "
        "a set.",
    )
    varies: str = Field(
        default="",
        description="The reason why two runs with the same code and seed may give different numbers. Empty: on CPUs, their "
        "numbers are equal to the last bit.",
    )
    most_ranks: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of ranks that the launcher starts; default: as many as the job asks for.",
    )
    memory: bool = Field(
        default=False, description="true: the programs of this folder can use [checkpoint] memory_every."
    )
    requires: tuple[str, ...] = Field(default=(), description="Python packages that the image must contain.")
    fits: dict[str, dict[str, bool | int]] = Field(
        default_factory=dict,
        description="Program of this folder -> options that must fit the number of ranks and each other, each with its "
        "default. false marks an option without a value. An option with the default 0 may be 0.",
    )
    defaults: dict[str, Any] = Field(
        default_factory=dict,
        description="Default values for keys of a job. The job, its QOS row and the cluster win over them.",
    )

    def _programs(self, job: Job) -> Programs | None:
        """The set of programs that the job chooses."""
        return self.programs.get((job.rl or job.sft or Sft()).programs)

    def releases_of(self, job: Job) -> Releases | None:
        """The releases that the launcher knows of the program that a job starts; None if the program is the kit's own."""
        chosen = self._programs(job)
        return self.releases or (chosen.releases if chosen else None)

    def required(self, job: Job) -> tuple[str, ...]:
        """The packages that a job's image must have for the programs that this launcher would start."""
        chosen = self._programs(job)
        return (*self.requires, *(chosen.requires if chosen else ()), *job.metrics.packages)
