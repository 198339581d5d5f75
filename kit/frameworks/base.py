"""Protocol of a training framework: the tables of a job that it reads, its rules, and what it adds to a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kit.allocation import Allocation
from kit.errors import Fault
from kit.spec.job import Job
from kit.spec.launcher import Launcher
from kit.spec.roles import Role


@dataclass(frozen=True, kw_only=True)
class Extra:
    """What a framework adds: files of the run folder, name -> text; arguments. In both, {run} is the run folder inside.

    roles: those that the start shapes `replicas` and `roles` split a job into. explained: for a reader of the batch script.
    warnings: what will run, and perhaps not as meant; they name no file.
    """

    files: dict[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    roles: Mapping[str, Role] = field(default_factory=dict)
    explained: tuple[str, ...] = ()
    warnings: tuple[Fault, ...] = ()


class Framework(Protocol):
    """One module of kit/frameworks/ holds one; its name there is `framework` in launcher.toml."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Keys of the job file that it reads; a job with another framework's table is refused."""
        ...

    def resources(self, job: Job) -> dict[str, int]:
        """`nodes` and `gpus_per_node`, where its table says them; else [resources] counts."""
        ...

    def faults(self, job: Job, launcher: Launcher, allocation: Allocation) -> Iterable[Fault]:
        """What the framework itself would refuse once the job has its nodes. The faults name no file: the caller knows it."""
        ...

    def prepare(self, job: Job, launcher: Launcher, allocation: Allocation) -> Extra:
        """What it adds to a job without faults."""
        ...
