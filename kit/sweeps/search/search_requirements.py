"""Checks a search before submit: Optuna is installed for the nodes, and every possible value of a key can be planned."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from typing import Protocol

from kit import frameworks
from kit.config import Resolved
from kit.errors import Fault, UsageError
from kit.hosts.host import Host
from kit.schema.sweep import Search
from kit.sweeps.points.expand import Point, Values
from kit.sweeps.points.grouped_faults import Gathered

_ARGS = "args."


class Planner(Protocol):
    """Plans a point, or raises ConfigError with its faults."""

    @property
    def file(self) -> str: ...

    def resolved(self, point: Point) -> Resolved: ...

    def planned(self, point: Point) -> object: ...


def argv() -> tuple[str, ...]:
    """The argv with which a task asks: this Python interpreter, by its path. The nodes see it as they see the run folder.

    UsageError if Optuna is not installed.
    """
    if importlib.util.find_spec("optuna") is None:
        raise UsageError("[sweep.search] needs Optuna, which is not installed", hint="pip install 'slurm-kit[search]'")
    return (sys.executable, "-P", "-m", "kit.sweeps.search.on_node")


def require_kit_on_nodes(host: Host) -> None:
    """UsageError for a cluster that does not have this machine's files: Slurm starts each point with this machine's Python."""
    if not host.shares_files:
        problem = (
            f"[sweep.search]: when Slurm starts a point, its node runs the kit to choose the values, and the nodes of cluster "
            f"{host.name} do not have this machine's Python ({sys.executable})"
        )
        raise UsageError(
            problem, hint="install the kit on the login node and run 'kit sweep' there; or use [sweep.random]"
        )


def check(search: Search, planner: Planner, first: Point, faults: Gathered) -> None:
    """Collect faults in values that no point was planned with.

    Options that the plan itself reads, such as a batch size that must fit the ranks, are planned for each of their values, which
    must be listed. Other options concern only the program. If any option may be read, the ends of an interval are planned.
    """
    resolved = planner.resolved(first)
    if resolved.job.shape == "roles" or resolved.job.roles:
        problem = "a job of several roles cannot be searched: nothing says whose option it is"
        hint = "[sweep.grid] for a job of roles"
        faults.add(first, [Fault(file=planner.file, key="sweep.search", problem=problem, hint=hint)])
        return
    read = frameworks.options_read(resolved)
    for key, how in search.keys.items():
        if not key.startswith(_ARGS) or (read is not None and key.removeprefix(_ARGS) not in read):
            continue
        span = how.uniform or how.log_uniform
        if how.choice is None and read is not None:
            problem = "the plan reads this option, so each of its values is checked at submit: they have to be listed"
            faults.add(
                first,
                [
                    Fault(
                        file=planner.file, key=f"sweep.search.keys.{key}", problem=problem, hint="choice = [16, 32, 64]"
                    )
                ],
            )
            continue
        for value in how.choice or (tuple(map(round, span)) if span and how.integer else span) or ():
            point = replace(first, values=Values({**first.values, key: value}))
            with faults.collect(point):
                planner.planned(point)
