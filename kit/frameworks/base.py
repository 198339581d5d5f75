"""Protocol of a training framework: the tables of a job that it reads, its rules, and what it adds to a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kit.allocation import Allocation
from kit.errors import Fault
from kit.schema.job import Job
from kit.schema.launcher import Launcher
from kit.schema.roles import Role


@dataclass(frozen=True, kw_only=True)
class Extra:
    """Additions of a framework to a run. files: files of the run folder, name -> text. args: arguments of the program.

    In both, and in start, {run} stands for the run folder's path inside the container. start: words before the job's program, such
    as a program of the launcher's folder that starts it. roles: the roles of a job whose start shape is `replicas` or `roles`.
    explained: lines for the reader of the batch script. warnings: problems that do not stop the job; they name no file.
    """

    files: dict[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    roles: Mapping[str, Role] = field(default_factory=dict)
    explained: tuple[str, ...] = ()
    warnings: tuple[Fault, ...] = ()


class Framework(Protocol):
    """Each module of kit/frameworks/ holds one framework.

    launcher.toml refers to it by the module's name, in the key `framework`.
    """

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables of the job file that this framework reads. A job with another framework's table is refused."""
        ...

    def resources(self, job: Job) -> dict[str, int]:
        """`nodes` and `gpus_per_node` as the framework's table sets them; without them, [resources] applies."""
        ...

    def faults(self, job: Job, launcher: Launcher, allocation: Allocation) -> Iterable[Fault]:
        """Problems that the framework itself would report only after the job has its nodes.

        They name no file: the caller adds it.
        """
        ...

    def prepare(self, job: Job, launcher: Launcher, allocation: Allocation) -> Extra:
        """Return what the framework adds to a job that has no faults."""
        ...
