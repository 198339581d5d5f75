"""Rules between roles: named roles exist, roles fit on shared nodes, ports are declared, and no roles wait for each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from kit.allocation import Allocation
from kit.config import Resolved
from kit.errors import ConfigError, Fault, nearest
from kit.schema.roles import Role
from kit.validation import toml

_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9-]*)\.(address|nodes|port\.[a-z][a-z0-9-]*)\}")


def check(resolved: Resolved, allocation: Allocation, roles: Mapping[str, Role]) -> None:
    """ConfigError with all faults in the roles of a job."""
    rank_args = resolved.job.rank_args
    faults = [fault for name in roles for fault in _wrong(name, roles, allocation)]
    if not any(role.policy != "service" for role in roles.values()):
        problem = "all roles are services: a service ends after the other roles, so this job would never be done"
        faults.append(Fault(key="roles", problem=problem, hint='policy = "main" in the role that the job is for'))
    if rank_args and all(r.command is not None or r.script is not None for r in roles.values()):
        problem = "no role starts the job's program, which would take these options: each role names its own command or script"
        faults.append(Fault(key="rank_args", problem=problem, hint="remove the line"))
    if faults := faults or [*_circle(roles)]:
        raise ConfigError.of(*faults, file=resolved.job_file)


def _wrong(name: str, roles: Mapping[str, Role], allocation: Allocation) -> Iterator[Fault]:
    """References of a role to things that its node or the other roles do not have."""
    role, others, where = roles[name], [other for other in roles if other != name], f"roles.{name}"
    for key, named in [("shares", role.shares), *(("after", one) for one in role.after)]:
        if named is not None and named not in others:
            near = nearest(named, others) or next(iter(others), "")
            hint = f"{key} = {toml(near if key == 'shares' else [near])}" if near else "remove the line"
            problem = f"there is no other role {named!r}"
            yield Fault(key=f"{where}.{key}", problem=problem, allowed=", ".join(others), hint=hint)
    if role.shares in others:
        yield from _unshareable(where, role, role.shares, roles[role.shares])
    if role.gpus and max(role.gpus) >= allocation.gpus_per_node:
        problem = f"{toml(list(role.gpus))} is not on the node: its GPUs are 0 to {allocation.gpus_per_node - 1}"
        fitting = [gpu for gpu in role.gpus if gpu < allocation.gpus_per_node]
        hint = f"gpus = {toml(fitting)}" if fitting else "remove the line: the role then has all GPUs"
        yield Fault(key=f"{where}.gpus", problem=problem, hint=hint)
    for word in (*(role.command or ()), *role.args, *role.env.values()):
        for other, what in _PLACEHOLDER.findall(word):
            port = what.removeprefix("port.")
            if other in roles and what.startswith("port.") and port not in roles[other].ports:
                problem = f"{{{other}.{what}}} names a port that role {other!r} does not have"
                hint = f"ports = {toml([*roles[other].ports, port])} in [roles.{other}]"
                yield Fault(key=f"{where}.command", problem=problem, hint=hint)


def _unshareable(where: str, role: Role, name: str, other: Role) -> Iterator[Fault]:
    """Reasons why a role cannot run on another role's nodes. name: of the other role."""
    has, asked = other.nodes or 1, role.nodes
    if other.shares is not None:
        problem = f"role {name!r} shares the nodes of {other.shares!r}, and has none of its own"
        yield Fault(key=f"{where}.shares", problem=problem, hint=f"shares = {toml(other.shares)}")
    elif isinstance(has, int) and isinstance(asked, int) and asked > has:
        problem = f"{asked} is more than role {name!r} has: {has}"
        yield Fault(key=f"{where}.nodes", problem=problem, hint=f"nodes = {has}")


def _circle(roles: Mapping[str, Role]) -> Iterator[Fault]:
    """Roles that wait for each other in a circle."""
    try:
        TopologicalSorter({name: role.after for name, role in roles.items()}).prepare()
    except CycleError as error:
        names = error.args[1]
        problem = f"these wait for each other, and none would start: {' -> '.join(names)}"
        yield Fault(key="roles", problem=problem, hint=f"remove 'after' from [roles.{names[0]}]")
